// Copies between arrays with any strides: they implement transposition, slicing and broadcasting.
#pragma once

#include <vector>

#include "runtime/isa.h"
#include "runtime/kernel.h"

namespace graphkit {

// Transposes between arrays that are contiguous along different axes: element (a, b) goes from source + a * element + b
// * source_stride to target + a * target_stride + b * element. With `stream`, stores bypass the caches. There is one
// table for each instruction set; `tile[log2(element)]` is for elements of 1, 2, 4 and 8 bytes.
struct TransposeTable {
    using Tile = void (*)(const std::byte* source, std::byte* target, std::int64_t source_stride,
                          std::int64_t target_stride, std::int64_t rows, std::int64_t columns, bool stream);
    Tile tile[4];
    // Repeats a line of 64 bytes; the last repetition may be incomplete.
    void (*fill)(std::byte* target, const std::byte* line, std::int64_t bytes);
};

GRAPHKIT_ISA_TABLE(TransposeTable, transpose_table);

// One loop of a copy: the number of iterations, and the bytes between neighbours in source and target.
struct CopyAxis {
    std::int64_t size;
    std::int64_t source;
    std::int64_t target;
};

// target[i . target strides] = source[i . source strides] for every index i below `sizes`; strides are in elements and
// may be negative. No element of the target is written twice. The constructor plans the copy: it merges axes where
// possible, treats rows that fit into a register as elements, and chooses the inner loops.
class StridedCopy {
  public:
    StridedCopy() = default;
    StridedCopy(const Dims& sizes, const Dims& source_strides, const Dims& target_strides, std::size_t element);

    // `source` and `target` point to the elements with index 0.
    void run(int threads, const void* source, void* target) const;

  private:
    enum class Inner { nothing, rows, fill, tiles, elements };

    void find_copies();
    void choose();
    bool narrow() const;
    void run_once(int threads, const std::byte* source, std::byte* target) const;
    void run_rows(int threads, const std::byte* source, std::byte* target) const;
    void run_repeats(int threads, const std::byte* source, std::byte* target) const;
    void run_tiles(int threads, const std::byte* source, std::byte* target) const;
    void run_elements(int threads, const std::byte* source, std::byte* target) const;
    bool lines_stay_whole(const std::byte* target) const;
    double nanoseconds(double bytes) const;

    Inner inner_ = Inner::nothing;
    // Contiguous blocks of the target that are copied from other blocks of the target: the axes outside of them, then
    // the number of copies of each block. Both offsets of an axis are in the target.
    std::vector<CopyAxis> copied_;
    std::int64_t block_ = 0;  // bytes of a block
    std::vector<CopyAxis> outer_;
    CopyAxis row_{1, 0, 0};      // the inner loop; for tiles, the axis along which the target is contiguous
    CopyAxis column_{1, 0, 0};   // for tiles, the axis along which the source is contiguous
    std::int64_t element_ = 1;   // bytes
    std::int64_t source_offset_ = 0;
    std::int64_t target_offset_ = 0;
    bool stream_ = false;  // the target does not fit into the caches
    const TransposeTable* table_ = nullptr;
};

// Throws NativeError unless offset + i . strides is in [0, elements) for every index i below `sizes`.
void require_inside(const Kernel& kernel, const Dims& sizes, const Dims& strides, std::int64_t offset,
                    std::int64_t elements);

}  // namespace graphkit
