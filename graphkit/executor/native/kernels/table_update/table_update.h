// Pointwise updates of a table whose gradient is given by rows: what no row touches is updated with a gradient of zero.
#pragma once

#include "runtime/kernel.h"
#include "kernels/pointwise/pointwise.h"

namespace graphkit {

// Operands: rows [*indices, width...], indices (int32 or int64, counted from the back when negative), then those of the
// update after its first one, which is the gradient: float32 [size, width...] with each row added at its index, in
// their order. The table goes through `tile`, a kernel of one thread for some of its rows at a time, and what is left
// over at the end through `rest`, which is null where nothing is. Both have to outlive this kernel. Operands of the
// update are arrays of the table's shape and scalars. Indices outside the table throw NativeError from run, before
// anything is written.
class TableUpdate final : public Kernel {
  public:
    TableUpdate(const Pointwise& tile, const Pointwise* rest, std::int64_t size, Dims indices, ElementType index_type,
                int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<std::pair<int, int>> inplace() const override;

  private:
    // For each row of the table the first index that names it, for each index the next one that names its row; or -1.
    struct Chains {
        std::int32_t* heads;
        std::int32_t* next;
    };

    template <typename Index>
    void link(const Index* indices, const Chains& chains) const;
    // Adds the gradients of some rows of the table, and tells whether there are any.
    bool add(const float* rows, const Chains& chains, std::int64_t first, std::int64_t count, float* gradient) const;
    void update(const void* const* inputs, void* const* outputs, const Chains& chains, std::byte* scratch,
                std::int64_t first, std::int64_t last) const;

    const Pointwise& tile_;
    const Pointwise* rest_;
    std::int64_t size_;       // rows of the table
    std::int64_t width_;      // elements of a row
    std::int64_t tile_rows_;
    std::int64_t taken_;      // indices
    std::size_t part_bytes_;  // of working memory for a thread
};

}  // namespace graphkit
