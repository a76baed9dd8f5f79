// Combines the lanes of each of several vectors. For *.isa.cpp only.
#pragma once

#include <utility>

#include "simd/vector.h"

namespace graphkit {
namespace {

// Divides a and b into pairs of blocks of `Half` lanes. Returns the lower, or the upper, block of each pair.
template <int Half, bool Upper, typename V, int... Lane>
inline V half_blocks(V a, V b, std::integer_sequence<int, Lane...>) {
    return __builtin_shufflevector(a, b, (Lane / Half * 2 * Half + (Upper ? Half : 0) + Lane % Half)...);
}

// totals[0] = for each of kLanes<T> vectors, its lanes combined in the order of across(). In recursive calls, `Count`
// vectors are left, in which blocks of 2 * Half lanes belong to one of the first vectors.
template <typename Op, typename T, int Half = static_cast<int>(kLanes<T>) / 2, int Count = static_cast<int>(kLanes<T>)>
inline void across_each(Vector<T>* totals) {
    using Lanes = std::make_integer_sequence<int, static_cast<int>(kLanes<T>)>;
#pragma GCC unroll 16
    for (int i = 0; i < Count; i += 2) {
        const Vector<T> lower = half_blocks<Half, false>(totals[i], totals[i + 1], Lanes());
        const Vector<T> upper = half_blocks<Half, true>(totals[i], totals[i + 1], Lanes());
        totals[i / 2] = Op::combine(lower, upper);
    }
    if constexpr (Half > 1) {
        across_each<Op, T, Half / 2, Count / 2>(totals);
    }
}

}  // namespace
}  // namespace graphkit
