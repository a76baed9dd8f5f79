// Reductions over any axes of an array, shared among threads.
#pragma once

#include "primitives/reduction_table.h"
#include "runtime/kernel.h"

namespace graphkit {

// The positions of the elements that are reduced to one. Adjacent axes of the same kind (kept or reduced) are merged.
// The innermost of the merged axes form a matrix of `rows` x `width`. If the last axis is reduced, the matrix is a
// single row (rows = 1, `along_row`); else its rows are reduced, and its columns are kept. The other axes are in `kept`
// and `slabs`.
struct ReductionGeometry {
    struct Run {
        std::int64_t size;
        std::int64_t stride;
    };

    std::vector<Run> kept;   // outer axes that stay
    std::vector<Run> slabs;  // outer axes that are reduced
    bool along_row = false;
    std::int64_t rows = 1;
    std::int64_t row_stride = 0;
    std::int64_t width = 1;

    std::int64_t kept_count = 1;
    std::int64_t slab_count = 1;
    std::int64_t outputs = 1;
    std::int64_t reduced_count = 1;  // elements that are reduced to one output

    ReductionGeometry() = default;
    ReductionGeometry(const Dims& shape, const std::vector<bool>& reduced);

    static std::int64_t offset(const std::vector<Run>& runs, std::int64_t index);
};

// One reduction over all of x. If there are too few outputs to share among threads, partial results are computed; these
// depend on the shapes only, not on the number of threads.
template <typename T>
class Reducer {
  public:
    using Acc = Accumulator<T>;
    Reducer(const ReductionGeometry& geometry, Reduction reduction);

    // Number of accumulators for partial results.
    std::int64_t partial_count() const;
    // `shift`: one for each output, for reductions that subtract one.
    void run(const T* x, const Acc* shift, Acc* out, Acc* partial, int threads) const;

  private:
    void reduce_pieces(const T* x, const Acc* shift, Acc* out, std::int64_t first, std::int64_t last, std::int64_t tile,
                       std::int64_t width) const;

    ReductionGeometry geometry_;
    Reduction reduction_;
    ReductionFunctions<T> functions_;
    std::int64_t tiles_ = 1;         // of kReductionTile columns, for each index of the kept axes
    std::int64_t parts_ = 1;         // pieces of each slab
    std::int64_t part_size_ = 1;     // rows, or elements of a row, in a piece
    std::int64_t pieces_ = 1;        // pieces that are reduced to one output tile
    std::int64_t shares_ = 1;        // groups of pieces that are reduced separately
};

}  // namespace graphkit
