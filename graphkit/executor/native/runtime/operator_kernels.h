// Kernels that are made from what a node says, without a factory in Python.
//
//     GRAPHKIT_KERNEL("ai.graphkit", FiniteGuard) {
//         const TensorSpec &x = node.input(0).tensor, &token = node.input(1).tensor;
//         return std::make_unique<FiniteGuard>(x.shape, x.type, token.shape, token.type);
//     }
//
// in a source of kernels/ (of an .isa.cpp inside of GRAPHKIT_ONCE) makes the kernels of that operator. Unsupported,
// thrown there, means that this case has none: the node is interpreted.
//
//     GRAPHKIT_KERNEL_READING("", Transpose) { ... }
//     GRAPHKIT_KERNEL_READING("", ReduceSum, 1) { ... }
//
// names the operands whose elements the kernel is made from, here none and operand 1. Elements of other operands may
// then depend on sizes that change.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/kernel.h"

namespace graphkit {

// A node of known shapes.
struct NodeSpec {
    using Attribute = std::variant<std::int64_t, double, std::string, std::vector<std::int64_t>, std::vector<double>>;
    using Attributes = std::map<std::string, std::optional<Attribute>>;
    struct Input {
        TensorSpec tensor;
        std::optional<std::vector<std::int64_t>> elements;  // of an integer tensor, where they are known
        bool read = true;                                   // whether the kernel may be made from them
    };

    std::vector<std::optional<Input>> inputs;
    std::vector<TensorSpec> outputs;
    const Attributes* attributes = nullptr;  // an attribute is without a value if the node gives none
    std::vector<bool> used;                  // which outputs are used
    std::vector<std::size_t> constants;  // positions of parameters and constants: a kernel may request them packed
    bool sizes_vary = false;  // kernels for other sizes will follow: the time to make one matters
    bool deterministic = false;  // results must not depend on the number of threads
    int threads = 1;

    bool is_used(std::size_t output) const { return output >= used.size() || used[output]; }
    bool is_constant(std::size_t position) const;

    // Whether the node gives an attribute that may be left out. Throws NativeError when the operator has no such one.
    bool has_attribute(const std::string& name) const;

    bool has_input(std::size_t position) const { return position < inputs.size() && inputs[position].has_value(); }
    // Throws Unsupported when the operand is absent, or its elements are not known. Throws NativeError for elements
    // that GRAPHKIT_KERNEL_READING does not name.
    const Input& input(std::size_t position) const;
    const std::vector<std::int64_t>& elements(std::size_t position) const;
    // A switch is an integer, 0 or 1, a type its name. Throw Unsupported when the node gives no value, NativeError when
    // the operator has no such attribute, or one of another kind.
    std::int64_t integer(const std::string& name) const;
    double real(const std::string& name) const;
    const std::string& text(const std::string& name) const;
    const std::vector<std::int64_t>& integers(const std::string& name) const;
    const std::vector<double>& reals(const std::string& name) const;
};

using MakeKernel = std::unique_ptr<Kernel> (*)(const NodeSpec& node);

// Positions of the operands whose elements a kernel is made from. Without a value: all operands.
using ReadPositions = std::optional<std::vector<std::size_t>>;

struct OperatorKernel {
    OperatorKernel(const char* domain, const char* name, MakeKernel make, ReadPositions reads);
};

}  // namespace graphkit

#define GRAPHKIT_KERNEL(domain, name) GRAPHKIT_KERNEL_OF(domain, name, ::std::nullopt)
#define GRAPHKIT_KERNEL_READING(domain, name, ...) \
    GRAPHKIT_KERNEL_OF(domain, name, (::std::vector<::std::size_t>{__VA_ARGS__}))
#define GRAPHKIT_KERNEL_OF(domain, name, reads)                                                                    \
    static std::unique_ptr<::graphkit::Kernel> make_##name(const ::graphkit::NodeSpec& node);                      \
    [[maybe_unused]] static const ::graphkit::OperatorKernel kernel_of_##name(domain, #name, &make_##name, reads); \
    static std::unique_ptr<::graphkit::Kernel> make_##name(const ::graphkit::NodeSpec& node)
