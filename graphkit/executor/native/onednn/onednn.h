// What the kernels that run through oneDNN share: descriptors, post-operations, and the run of one primitive.
#pragma once

#include <array>
#include <dnnl.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/pointwise/epilogue.h"
#include "onednn/choice.h"
#include "onednn/one_thread.h"
#include "runtime/kernel.h"
#include "runtime/threads.h"

namespace graphkit {

std::string onednn_version();
std::string onednn_isa();

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
// through the working memory.
class Operation {
  public:
    // Position of an operand among the inputs (or outputs) of a kernel, and the layout of the caller's array.
    void input(int argument, std::size_t position, const dnnl::memory::desc& given, const dnnl::memory::desc& wanted);
    void output(int argument, std::size_t position, const dnnl::memory::desc& given, const dnnl::memory::desc& wanted);
    // Comes after the operands. The descriptor must have been made with `attributes()`.
    void finish(const dnnl::primitive_desc_base& descriptor, dnnl::primitive primitive);

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
    std::string implementation_;
    std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();
};

// Where one piece of a kernel's work lies: bytes from the beginning of each input and output.
struct Piece {
    std::size_t operation = 0;  // of the kernel's operations: the one for extents like this piece's
    std::array<std::size_t, 4> inputs{};
    std::array<std::size_t, 2> outputs{};
    std::size_t partial = 0;  // which of the partial results it belongs to
};

// A kernel that is cut into pieces, operations that one thread each computes. How the library sums may depend on how
// the work is cut: to be `deterministic`, it is cut by shapes alone, else with a look at the number of threads. Zeros
// where an operand has no elements. What was invalid (see invalid_flag.h) can be seen after a run.
class LibraryKernel : public Kernel {
  public:
    LibraryKernel(std::string name, int threads, bool deterministic);
    ~LibraryKernel() override;
    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<int> packed_inputs() const override;
    std::size_t packed_bytes(int input) const override;
    std::string packed_layout(int input) const override;
    void pack(int input, const void* plain, void* packed) const override;
    // The inverse of `pack`.
    void unpack(int input, const void* packed, void* plain) const;
    std::string implementation() const override;
    // Whether what is not finite in input 0 may spoil results that it is no term of.
    virtual bool wants_finite() const { return false; }
    // Whether the library does on the way what follows the product.
    bool fuses() const { return !pass_ && !empty_; }

  protected:
    // In how many pieces to cut this work, at most: a power of two. The work may be to move bytes, not to multiply.
    std::int64_t pieces_for(double multiply_adds, double bytes);
    // Of all operands.
    double operand_bytes() const;
    // From now on nothing is cut.
    void leave_whole() { whole_ = true; }

    // Adds a piece, and the operation that `make` returns unless a piece before it had the same extents.
    template <typename Make>
    void add_piece(Piece piece, const Dims& extents, Make&& make) {
        const auto [found, is_new] = by_extents_.try_emplace(extents, operations_.size());
        if (is_new) {
            const OneThread alone;
            operations_.push_back(make());
        }
        piece.operation = found->second;
        pieces_.push_back(piece);
    }
    // Whether `body`, which adds pieces, finds an implementation for each; where it does not, nothing is left of it.
    template <typename Body>
    bool attempt(Body&& body) {
        try {
            body();
            return true;
        } catch (const dnnl::error& error) {
            if (error.status != dnnl_unimplemented) {
                throw;
            }
            restart();
            return false;
        }
    }
    // The operations make the product alone, and a pass behind it does the rest; the bias is input 2. `shape` is that
    // of a row-major result, [outer, channels, inner]. Returns the element type that the operations have to write.
    ElementType apply_after(const Epilogue& epilogue, const Dims& shape, ElementType type);
    // Every operation wants the whole of input 1 in this layout. It comes so when it is `packed`, else it is brought
    // into it once a run.
    void share_weights(const dnnl::memory::desc& given, const dnnl::memory::desc& wanted, bool packed);
    // This input is the residual; else it is what the output holds when the run starts.
    void accumulate(std::size_t input) { residual_ = static_cast<int>(input); }
    // The outputs are the sums, one after the other, of so many float32 results.
    void sum_partials(std::size_t count) { partials_ = count; }
    // The sum with a residual, operand 3, goes on in its own memory.
    std::vector<std::pair<int, int>> residual_inplace() const;

    bool empty_ = false;  // every output is zero

  private:
    // The working memory: converted weights, partial results, the product before its epilogue, then that of
    // operations, for each thread.
    struct Places {
        std::size_t weights = 0;
        std::size_t partials = 0;
        std::size_t product = 0;
        std::size_t operations = 0;
        std::size_t each = 0;
        std::size_t end = 0;
    };
    void restart();
    Places places() const;
    std::size_t output_bytes(std::size_t output) const;
    void run_pieces(const void* const* inputs, void* const* outputs, std::byte* scratch) const;
    void add_partials(const std::byte* partials, void* const* outputs) const;

    bool deterministic_;
    bool whole_ = false;
    std::vector<Operation> operations_;
    std::map<Dims, std::size_t> by_extents_;
    std::vector<Piece> pieces_;
    double nanoseconds_ = 0;  // of all pieces on one thread
    std::size_t partials_ = 1;
    int residual_ = -1;
    std::unique_ptr<Pointwise> pass_;  // the epilogue, where operations do not apply it
    bool apart_ = false;               // the product lies in float32 beside the result, else in its place
    std::optional<Operation> conversion_;  // of the weights, where they do not come as operations want them
    dnnl::memory::desc weights_given_;
    dnnl::memory::desc weights_wanted_;
    bool packed_ = false;
};

}  // namespace graphkit
