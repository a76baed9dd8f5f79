// What the kernels that run through oneDNN share: descriptors, post-operations, and the run of one primitive.
#pragma once

#include <dnnl.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernel.h"
#include "threads.h"

namespace graphkit {

std::string onednn_version();
std::string onednn_isa();

// An elementwise function of a result: kind (relu, tanh, sigmoid, gelu, gelu_tanh, swish, hard_swish, hard_sigmoid, elu,
// clip, softplus, abs, sqrt, exp, square, linear) and its alpha and beta, as oneDNN defines them.
struct Activation {
    std::string kind;
    float alpha = 0;
    float beta = 0;
};

// What happens to a result before it is stored: y = activation(result + residual), or with `residual_last`
// y = activation(result) + residual.
struct Epilogue {
    std::optional<Activation> activation;
    bool residual = false;
    bool residual_last = false;
};
// Throws NativeError for an unknown kind. The residual is a sum with what the destination holds.
void append(dnnl::post_ops& chain, const Epilogue& epilogue);

const dnnl::engine& engine();

// Throws Unsupported for a type other than f32 and bf16.
dnnl::memory::data_type library_type(ElementType type);
// A row-major tensor.
dnnl::memory::desc plain(const Dims& dims, ElementType type);
// A tensor in the layout that a primitive likes best.
dnnl::memory::desc any(const Dims& dims, ElementType type);
// [N, C, spatial] as [N, spatial, C].
Dims channels_last(const Dims& dims);
// A tensor [N, C, spatial] that lies in memory row-major, as [N, spatial, C] when `last`.
dnnl::memory::desc laid_out(const Dims& dims, bool last, ElementType type);

// Throws what a library error means for a kernel: Unsupported when there is no implementation, else NativeError.
[[noreturn]] void rethrow(const Kernel& kernel, const dnnl::error& error);

// Calls `body`, with library errors told in the kernel's words.
template <typename Body>
auto guarded(const Kernel& kernel, Body&& body) {
    try {
        return body();
    } catch (const dnnl::error& error) {
        rethrow(kernel, error);
    }
}

// One primitive with its operands. An operand whose array is laid out otherwise than the primitive wants is reordered
// through the working memory, except for the packed one, which comes as the primitive wants it.
class Operation {
  public:
    // Position of an operand among the inputs (or outputs) of a kernel, and the layout of the caller's array.
    void input(int argument, std::size_t position, const dnnl::memory::desc& given, const dnnl::memory::desc& wanted);
    void packed_input(int argument, std::size_t position, const dnnl::memory::desc& plain,
                      const dnnl::memory::desc& wanted);
    void output(int argument, std::size_t position, const dnnl::memory::desc& given, const dnnl::memory::desc& wanted);
    // The destination starts as a copy of this input.
    void accumulate(std::size_t input) { residual_ = static_cast<int>(input); }
    // Comes after the operands. The descriptor must have been made with `attributes()`.
    void finish(const dnnl::primitive_desc_base& descriptor, dnnl::primitive primitive);

    int packed_input() const { return packed_; }
    std::size_t packed_bytes() const;
    std::string packed_layout() const;
    void pack(const void* plain, void* packed) const;

    std::size_t scratch_bytes() const { return scratch_bytes_; }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const;

    const std::string& implementation() const { return implementation_; }

    // Working memory given by us instead of held by each primitive.
    static dnnl::primitive_attr attributes(const dnnl::post_ops& chain = {});

  private:
    struct Operand {
        int argument;
        std::size_t position;
        bool is_output;
        dnnl::memory::desc given;
        dnnl::memory::desc wanted;
        dnnl::reorder reorder;  // none where the layouts agree
        dnnl::memory::desc reorder_scratchpad;
        std::size_t offset = 0;  // of the reordered operand in the working memory

        bool reorders() const { return static_cast<bool>(reorder); }
    };

    // The library's memory objects of one run at a time: their handles change from run to run.
    struct Arguments {
        std::vector<dnnl::memory> given;
        std::vector<dnnl::memory> wanted;
        std::vector<dnnl::memory> reorder_scratchpads;
        dnnl::memory scratchpad;
        std::vector<dnnl_exec_arg_t> list;
    };

    // Argument sets that no run uses. Shared by copies of an operation: they are made for the same descriptors.
    struct Pool {
        std::mutex mutex;
        std::vector<std::unique_ptr<Arguments>> idle;
    };

    void add(int argument, std::size_t position, bool is_output, const dnnl::memory::desc& given,
             const dnnl::memory::desc& wanted);
    std::size_t reserve(std::size_t bytes);
    std::unique_ptr<Arguments> take() const;
    void give(std::unique_ptr<Arguments> arguments) const;
    void convert(const Operand& operand, const Arguments& arguments, std::size_t index) const;

    std::vector<Operand> operands_;
    dnnl::primitive primitive_;
    dnnl::memory::desc scratchpad_;
    std::size_t scratchpad_offset_ = 0;
    std::size_t reorder_scratchpad_offset_ = 0;
    std::size_t scratch_bytes_ = 0;
    int residual_ = -1;
    int packed_ = -1;
    dnnl::memory::desc packed_from_;
    dnnl::memory::desc packed_to_;
    std::string implementation_;
    std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();
};

// A kernel that is one operation, and zeros where an operand has no elements.
class LibraryKernel : public Kernel {
  public:
    using Kernel::Kernel;
    std::size_t scratch_bytes() const override { return operation_.scratch_bytes(); }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<int> packed_inputs() const override;
    std::size_t packed_bytes(int input) const override;
    std::string packed_layout(int input) const override;
    void pack(int input, const void* plain, void* packed) const override;
    std::string implementation() const override { return empty_ ? "empty" : operation_.implementation(); }

  protected:
    // The sum with a residual, operand 3, goes on in its own memory.
    std::vector<std::pair<int, int>> residual_inplace() const;

    Operation operation_;
    bool empty_ = false;  // every output is zero
};

}  // namespace graphkit
