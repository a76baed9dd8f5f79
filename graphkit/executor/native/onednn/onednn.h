// Base of the kernels that run through oneDNN: descriptors, operations, and a kernel that consists of several
// operations.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "onednn/library.h"

#include "kernels/pointwise/epilogue.h"
#include "onednn/choice.h"
#include "onednn/one_thread.h"
#include "runtime/kernel.h"
#include "runtime/threads.h"

namespace graphkit {

std::string onednn_version();
// Throws Unsupported if a size is negative, or so large that the library would compute with its lower 32 bits.
void require_sizes(const Dims& shape);
std::string onednn_isa();

const dnnl::engine& engine();

// Converts f32 and bf16. Throws Unsupported for other types.
dnnl::memory::data_type library_type(ElementType type);
// The descriptor of a row-major tensor.
dnnl::memory::desc plain(const Dims& dims, ElementType type);
// The descriptor of a tensor in the layout that a primitive prefers.
dnnl::memory::desc any(const Dims& dims, ElementType type);
// Converts [N, C, spatial] to [N, spatial, C].
Dims channels_last(const Dims& dims);
// The descriptor of a tensor [N, C, spatial] that is row-major in memory or, with `last`, [N, spatial, C].
dnnl::memory::desc laid_out(const Dims& dims, bool last, ElementType type);

// Returns a text that is equal for equal layouts of weights: for which all fields are equal that determine the
// positions of elements. given: the layout before packing; wanted: the layout after it.
std::string layout_text(const dnnl::memory::desc& given, const dnnl::memory::desc& wanted);
// The same from the fields themselves: dimensions, padded dimensions, strides of blocks, sizes of inner blocks, their
// dimensions, and the strides before packing.
std::string layout_text(dnnl::memory::data_type type, std::initializer_list<Dims> fields);

// Converts a library error: throws Unsupported if there is no implementation, else NativeError.
[[noreturn]] void rethrow(const Kernel& kernel, const dnnl::error& error);

// Calls `body`, and converts library errors like rethrow.
template <typename Body>
auto guarded(const Kernel& kernel, Body&& body) {
    try {
        return body();
    } catch (const dnnl::error& error) {
        rethrow(kernel, error);
    }
}

// One primitive with its operands. If an array's layout differs from what the primitive requires, the array is
// reordered through working memory.
class Operation {
  public:
    // Adds an operand. position: its number among the inputs (or outputs) of the kernel; given: the layout of the
    // caller's array; wanted: the layout that the primitive requires.
    void input(int argument, std::size_t position, const dnnl::memory::desc& given, const dnnl::memory::desc& wanted);
    void output(int argument, std::size_t position, const dnnl::memory::desc& given, const dnnl::memory::desc& wanted);
    // Must be called after all operands were added. The descriptor must have been made with `attributes()`.
    void finish(const dnnl::primitive_desc_base& descriptor, dnnl::primitive primitive);

    std::size_t scratch_bytes() const { return scratch_bytes_; }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const;

    const std::string& implementation() const { return implementation_; }

    // Attributes with which the caller provides the working memory, instead of each primitive.
    static dnnl::primitive_attr attributes(const dnnl::post_ops& chain = {});

  private:
    struct Operand {
        int argument;
        std::size_t position;
        bool is_output;
        dnnl::memory::desc given;
        dnnl::memory::desc wanted;
        dnnl::reorder reorder;  // empty if the layouts are equal
        dnnl::memory::desc reorder_scratchpad;
        std::size_t offset = 0;  // of the reordered operand in the working memory

        bool reorders() const { return static_cast<bool>(reorder); }
    };

    // The library's memory objects of one run at a time: each run sets their handles.
    struct Arguments {
        std::vector<dnnl::memory> given;
        std::vector<dnnl::memory> wanted;
        std::vector<dnnl::memory> reorder_scratchpads;
        dnnl::memory scratchpad;
        std::vector<dnnl_exec_arg_t> list;
    };

    // Arguments that no run uses at present. Copies of an operation share them, since they have the same descriptors.
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

// One piece of a kernel's work: offsets, in bytes, into each input and output.
struct Piece {
    std::size_t operation = 0;  // index of the operation: pieces with equal extents share one
    std::array<std::size_t, 4> inputs{};
    std::array<std::size_t, 2> outputs{};
    std::size_t partial = 0;  // index of the partial result to which it belongs
};

// A kernel whose work is divided into pieces; each is an operation that one thread runs. The division may affect
// rounding. If `deterministic`, it depends on the shapes alone, else also on the number of threads. If an operand has
// no elements, the outputs are zero. After a run, the flag of invalid operations (see invalid_flag.h) shows whether one
// occurred.
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
    // Whether NaN or infinities in input 0 may affect results that do not depend on them.
    virtual bool wants_finite() const { return false; }
    // Whether the library applies the epilogue.
    bool fuses() const { return !pass_ && !empty_; }

  protected:
    // Returns the largest number of pieces for this work, a power of two. Moving bytes may dominate the work, instead
    // of multiply-adds.
    std::int64_t pieces_for(double multiply_adds, double bytes);
    // Bytes of all operands.
    double operand_bytes() const;
    // From now on, work is not divided.
    void leave_whole() { whole_ = true; }

    // Adds a piece. `make` returns its operation; it is called only if no earlier piece has the same extents.
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
    // Calls `body`, which adds pieces. Returns false if the library lacks an implementation for one of them; all its
    // pieces are then removed.
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
    // The operations compute the product alone, and a pass after them applies the epilogue; the bias is input 2.
    // `shape`: the row-major result as [outer, channels, inner]. Returns the element type that the operations must
    // write.
    ElementType apply_after(const Epilogue& epilogue, const Dims& shape, ElementType type);
    // All operations require the whole of input 1 in the layout `wanted`. The caller provides it like that if `packed`;
    // else each run converts it once.
    void share_weights(const dnnl::memory::desc& given, const dnnl::memory::desc& wanted, bool packed);
    // Operations that add to their output add to a copy of this input, the residual; without this call, to what the
    // output contains when the run starts.
    void accumulate(std::size_t input) { residual_ = static_cast<int>(input); }
    // The outputs are sums of `count` partial float32 results.
    void sum_partials(std::size_t count) { partials_ = count; }
    // The result may share the memory of the residual, operand 3.
    std::vector<std::pair<int, int>> residual_inplace() const;

    bool empty_ = false;  // every output is zero

  private:
    // Offsets in the working memory: converted weights, partial results, the product before its epilogue, then the
    // memory of the operations, which has `each` bytes for every thread.
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
    double nanoseconds_ = 0;  // estimated time of all pieces on one thread
    std::size_t partials_ = 1;
    int residual_ = -1;
    std::unique_ptr<Pointwise> pass_;  // the epilogue, if the operations do not apply it
    bool apart_ = false;               // the product is float32 in memory of its own; else it is in y
    std::optional<Operation> conversion_;  // of the weights, if the caller does not provide them in the required layout
    dnnl::memory::desc weights_given_;
    dnnl::memory::desc weights_wanted_;
    bool packed_ = false;
};

}  // namespace graphkit
