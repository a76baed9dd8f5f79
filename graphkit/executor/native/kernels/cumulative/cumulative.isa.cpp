#include "kernels/cumulative/cumulative_table.h"

#include <algorithm>

#include "simd/aligned.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

// The columns of this many rows ahead are prefetched if they are a part of longer rows: the processor's own prefetchers
// do not know where the next row begins.
constexpr std::int64_t kRowsAhead = 4;

template <typename Rule, typename T>
void accumulate(const T* x, T* y, std::int64_t size, std::int64_t stride, std::int64_t columns) {
    const std::int64_t ahead = columns < stride ? kRowsAhead * stride : 0;
    std::copy_n(x, columns, y);
    for (std::int64_t i = 1; i < size; ++i) {
        x += stride;
        const T* const before = y;
        y += stride;
        const auto combine = [&](std::int64_t at) {
            __builtin_prefetch(x + at + ahead);
            __builtin_prefetch(y + at + ahead, 1);
            store(y + at, Rule::combine(load(before + at), load(x + at)));
        };
        std::int64_t c = before_aligned(y, columns);
        if (c != 0) {
            store_part(y, Rule::combine(load_part(before, c, T{}), load_part(x, c, T{})), c);
        }
        for (; c + kLanes<T> <= columns; c += kLanes<T>) {
            combine(c);
        }
        if (c < columns && columns >= kLanes<T>) {
            combine(columns - kLanes<T>);  // computes some results again
        } else {
            for (; c < columns; ++c) {
                y[c] = Rule::combine(before[c], x[c]);
            }
        }
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(CumulativeTable, cumulative_table) = {{accumulate<Add, float>, accumulate<Multiply, float>},
                                                          {accumulate<Add, double>, accumulate<Multiply, double>}};

}  // namespace graphkit
