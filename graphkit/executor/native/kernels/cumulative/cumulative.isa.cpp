#include "kernels/cumulative/cumulative_table.h"

#include <algorithm>

#include "simd/aligned.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

// The columns of this many rows ahead are prefetched if they are a part of longer rows: the processor's own prefetchers
// do not know where the next row begins.
constexpr std::int64_t kRowsAhead = 4;

// The largest number of vectors of columns whose totals stay in registers.
constexpr int kStripVectors = 8;

// Computes columns in `Count` vectors. The last vector has `rest` elements.
template <typename Rule, int Count, typename T>
void accumulate_strip(const T* x, T* y, std::int64_t size, std::int64_t stride, std::int64_t rest) {
    constexpr std::int64_t lanes = kLanes<T>;
    Vector<T> totals[Count];
    for (std::int64_t i = 0; i < size; ++i, x += stride, y += stride) {
#pragma GCC unroll 8
        for (int v = 0; v < Count; ++v) {
            const bool is_whole = v + 1 < Count || rest == lanes;
            const Vector<T> more = is_whole ? load(x + v * lanes) : load_part(x + v * lanes, rest, T{});
            totals[v] = i == 0 ? more : Rule::combine(totals[v], more);
            if (is_whole) {
                store(y + v * lanes, totals[v]);
            } else {
                store_part(y + v * lanes, totals[v], rest);
            }
        }
    }
}

template <typename Rule, typename T, int Count = 1>
void accumulate_few(const T* x, T* y, std::int64_t size, std::int64_t stride, std::int64_t columns) {
    if constexpr (Count < kStripVectors) {
        if (columns > Count * kLanes<T>) {
            return accumulate_few<Rule, T, Count + 1>(x, y, size, stride, columns);
        }
    }
    accumulate_strip<Rule, Count>(x, y, size, stride, columns - (Count - 1) * kLanes<T>);
}

template <typename Rule, typename T>
void accumulate(const T* x, T* y, std::int64_t size, std::int64_t stride, std::int64_t columns) {
    if (columns <= kStripVectors * kLanes<T>) {
        return accumulate_few<Rule>(x, y, size, stride, columns);
    }
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
        if (c < columns) {
            combine(columns - kLanes<T>);  // computes some results again
        }
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(CumulativeTable, cumulative_table) = {{accumulate<Add, float>, accumulate<Multiply, float>},
                                                          {accumulate<Add, double>, accumulate<Multiply, double>}};

}  // namespace graphkit
