// What the steps that run through oneDNN share: descriptors, post-operations, and the run of one primitive between
// row-major arrays.
#pragma once

#include <dnnl.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "step.h"

namespace graphkit {

std::string onednn_version();
std::string onednn_isa();

// Elementwise functions of a result, applied in order: kind (relu, tanh, sigmoid, gelu_erf, gelu_tanh, swish,
// hardswish, hardsigmoid, elu, clip, softplus, abs, sqrt, exp, square, linear) and its alpha and beta, as oneDNN
// defines them. Throws NativeError for another kind.
struct PostOp {
    std::string kind;
    float alpha = 0;
    float beta = 0;
};
void append(dnnl::post_ops& chain, const std::vector<PostOp>& post_ops);

const dnnl::engine& engine();

// A float32 row-major tensor.
dnnl::memory::desc plain(const Dims& dims);
// A float32 tensor in the layout that a primitive likes best.
dnnl::memory::desc any(const Dims& dims);

// Throws what a library error means for a step: Unsupported when there is no implementation, else NativeError.
[[noreturn]] void rethrow(const Step& step, const dnnl::error& error);

// Calls `body`, with library errors told in the step's words.
template <typename Body>
auto guarded(const Step& step, Body&& body) {
    try {
        return body();
    } catch (const dnnl::error& error) {
        rethrow(step, error);
    }
}

// One primitive with its operands. An operand whose array is laid out otherwise than the primitive wants is reordered
// through the scratch memory. Made and run by the owner of the team, because its memory objects are reused.
class Operation {
  public:
    // Position of an operand among the inputs (or outputs) of a step, and the layout of the caller's array.
    void input(int argument, std::size_t position, const dnnl::memory::desc& given, const dnnl::memory::desc& wanted);
    void output(int argument, std::size_t position, const dnnl::memory::desc& given, const dnnl::memory::desc& wanted);
    // Comes after the operands. The descriptor must have been made with `attributes()`.
    void finish(const dnnl::primitive_desc_base& descriptor, dnnl::primitive primitive);

    // The input at this position may come packed.
    void allow_packing(std::size_t position);
    int packable() const { return packable_; }
    std::unique_ptr<Packed> pack(const void* array) const;

    void run(Team& team, std::span<const void* const> inputs, std::span<void* const> outputs, const Packed* packed);

    const std::string& implementation() const { return implementation_; }

    // Post-operations, and scratch memory given by us instead of held by each primitive.
    static dnnl::primitive_attr attributes(const dnnl::post_ops& chain = {});

  private:
    struct Operand {
        std::size_t position;
        bool is_output;
        dnnl::memory given;   // the caller's array
        dnnl::memory wanted;  // what the primitive reads or writes; the same object when no reorder is needed
        dnnl::reorder reorder;
        dnnl::memory reorder_scratchpad;
        std::size_t offset = 0;  // of `wanted` in the scratch memory

        bool reorders() const { return static_cast<bool>(reorder); }
        void convert();
    };
    void add(int argument, std::size_t position, bool is_output, const dnnl::memory::desc& given,
             const dnnl::memory::desc& wanted);
    std::size_t reserve(std::size_t bytes);

    std::vector<Operand> operands_;
    std::vector<dnnl_exec_arg_t> arguments_;  // refer to the memory objects in operands_
    std::vector<int> argument_names_;
    dnnl::primitive primitive_;
    dnnl::memory scratchpad_;
    std::size_t scratchpad_offset_ = 0;
    std::size_t reorder_scratchpad_offset_ = 0;
    std::size_t scratch_bytes_ = 0;
    int packable_ = -1;
    std::string implementation_;
};

}  // namespace graphkit
