// Registration of kernels that are made from a node's description, without a factory in Python.
//
//     GRAPHKIT_KERNEL("ai.graphkit", FiniteGuard) {
//         const TensorSpec &x = node.input(0).tensor, &token = node.input(1).tensor;
//         return std::make_unique<FiniteGuard>(x.shape, x.type, token.shape, token.type);
//     }
//
// in a source file of kernels/ (in an .isa.cpp: inside of GRAPHKIT_ONCE) makes the kernels of that operator. If it
// throws Unsupported, there is no kernel for this case, and the node is interpreted.
//
//     GRAPHKIT_KERNEL_READING("", Transpose) { ... }
//     GRAPHKIT_KERNEL_READING("", ReduceSum, 1) { ... }
//
// lists the operands whose elements the kernel is made from: here none, and operand 1. The elements of the other
// operands may then depend on sizes that change.
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

// The description of a node with known shapes.
struct NodeSpec {
    using Attribute = std::variant<std::int64_t, double, std::string, std::vector<std::int64_t>, std::vector<double>>;
    using Attributes = std::map<std::string, std::optional<Attribute>>;
    struct Input {
        TensorSpec tensor;
        std::optional<std::vector<std::int64_t>> elements;  // of an integer tensor, if they are known
        bool read = true;                                   // whether the kernel may be made from them
    };

    std::vector<std::optional<Input>> inputs;
    std::vector<TensorSpec> outputs;
    const Attributes* attributes = nullptr;  // no value: the node does not give the attribute
    std::vector<bool> used;                  // which outputs are used
    std::vector<std::size_t> constants;  // positions of parameters and constants: a kernel may request them packed
    bool sizes_vary = false;  // kernels for other sizes will follow, so making one must be fast
    bool deterministic = false;  // results must not depend on the number of threads
    int threads = 1;

    bool is_used(std::size_t output) const { return output >= used.size() || used[output]; }
    bool is_constant(std::size_t position) const;

    // Whether the node gives this optional attribute. Throws NativeError if the operator has no such attribute.
    bool has_attribute(const std::string& name) const;

    bool has_input(std::size_t position) const { return position < inputs.size() && inputs[position].has_value(); }
    // Throws Unsupported if the operand is absent or its elements are not known. Throws NativeError for the elements of
    // an operand that GRAPHKIT_KERNEL_READING does not list.
    const Input& input(std::size_t position) const;
    const std::vector<std::int64_t>& elements(std::size_t position) const;
    // Return the value of an attribute. A flag is an integer, 0 or 1; an element type is its name. Throw Unsupported if
    // the node gives no value. Throw NativeError if the operator has no such attribute, or if it has another type.
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
