// Reductions over any axes of an array, shared among threads.
#pragma once

#include "primitives/reduction_table.h"
#include "runtime/kernel.h"

namespace graphkit {

// Where the elements lie that are reduced to one. Neighbouring axes of one kind are merged; of the axes that are left,
// the innermost are a matrix of `rows` x `width`. When the last axis is reduced it is a row, rows = 1 and `along_row`;
// else the columns stay and rows are reduced. The other axes are counted by `kept` and `slabs`.
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
    std::int64_t reduced_count = 1;  // elements behind each output

    ReductionGeometry() = default;
    ReductionGeometry(const Dims& shape, const std::vector<bool>& reduced);

    static std::int64_t offset(const std::vector<Run>& runs, std::int64_t index);
};

// One reduction over all of x. Partial results, where the outputs are too few to share, depend on the shapes only, not
// on the number of threads.
template <typename T>
class Reducer {
  public:
    using Acc = Accumulator<T>;
    Reducer(const ReductionGeometry& geometry, Reduction reduction);

    // Accumulators of partial results.
    std::int64_t partial_count() const;
    // `shift`: one for each output, for sum_exp.
    void run(const T* x, const Acc* shift, Acc* out, Acc* partial, int threads) const;

  private:
    void reduce_pieces(const T* x, const Acc* shift, Acc* out, std::int64_t first, std::int64_t last, std::int64_t tile,
                       std::int64_t width) const;

    ReductionGeometry geometry_;
    Reduction reduction_;
    ReductionFunctions<T> functions_;
    std::int64_t tiles_ = 1;         // of kReductionTile columns, for each kept index
    std::int64_t parts_ = 1;         // pieces of each slab
    std::int64_t part_size_ = 1;     // rows, or elements of a row, in a piece
    std::int64_t pieces_ = 1;        // behind each output tile
    std::int64_t shares_ = 1;        // groups of pieces that are reduced apart
};

}  // namespace graphkit
