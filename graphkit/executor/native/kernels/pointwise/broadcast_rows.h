// A single elementwise operation with broadcast operands, computed row by row. For it, preparing blocks would take
// longer than the operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/pointwise/broadcast_rows_table.h"
#include "kernels/pointwise/pointwise_layout.h"
#include "kernels/pointwise/pointwise_steps.h"

namespace graphkit {

class BroadcastRows {
  public:
    // Returns null if the source is not one operation with a function on rows.
    static RowsFunction function_of(const PointwiseSource& source);

    // Returns nothing if `function` is null, if there is only one row, or if blocks are faster. `source` and
    // `constants` (each repeated to fill `constant_bytes`) must outlive the object.
    static std::optional<BroadcastRows> of(RowsFunction function, const PointwiseSource& source, const Loops& loops,
                                           const std::byte* constants, std::size_t constant_bytes);

    // Computes rows [begin, end) of the output.
    void run(const void* const* inputs, void* const* outputs, const Loops& loops, std::int64_t begin,
             std::int64_t end) const;

  private:
    struct Operand {
        int input = -1;  // -1 for a constant
        const std::byte* constant = nullptr;
        std::int64_t stride = 0;  // in bytes, from row to row of the last two axes
        bool equal = false;       // each row has equal elements
    };

    RowsFunction function_ = nullptr;
    std::int64_t element_ = 0;  // bytes
    std::vector<Operand> operands_;
};

}  // namespace graphkit
