#include "kernels/cumulative/cumulative_table.h"

#include <algorithm>

#include "simd/aligned.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

template <typename Rule, typename T>
void accumulate(const T* x, T* y, std::int64_t size, std::int64_t stride, std::int64_t columns) {
    std::copy_n(x, columns, y);
    for (std::int64_t i = 1; i < size; ++i) {
        x += stride;
        const T* const before = y;
        y += stride;
        const auto combine = [&](std::int64_t at) { store(y + at, Rule::combine(load(before + at), load(x + at))); };
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
