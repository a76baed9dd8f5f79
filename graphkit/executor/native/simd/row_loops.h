// Loops over a row: elementwise functions, and sums. For *.isa.cpp only.
#pragma once

#include "simd/vector.h"

namespace graphkit {
namespace {

// Sums over longer rows are sums of the sums of their halves, so that the rounding error grows only with the logarithm
// of the number of elements.
constexpr std::int64_t kRowBlock = 4096;

// Reads whole vectors at one position of some rows.
template <typename T>
struct WholeVector {
    std::int64_t at;

    Vector<T> operator()(const T* row, T) const { return load(row + at); }
    // Prefetches the vector of a row that is written soon.
    void prefetch(T* row) const { __builtin_prefetch(row + at, 1); }
};

// Like WholeVector, at the end of the rows, which are `count` elements away.
template <typename T>
struct PartOfVector {
    std::int64_t at, count;

    Vector<T> operator()(const T* row, T fill) const { return load_part(row + at, count, fill); }
    void prefetch(T*) const {}
};

// y[i] = map(read), where read(p, fill) returns the vector at p + i. Lanes beyond the end of the row contain `fill`.
template <typename T, typename Map>
inline void map_row(T* y, std::int64_t size, Map&& map) {
    constexpr std::int64_t lanes = kLanes<T>;
    std::int64_t at = 0;
    for (; at + 2 * lanes <= size; at += 2 * lanes) {
        const Vector<T> first = map([&](const T* from, T) { return load(from + at); });
        const Vector<T> second = map([&](const T* from, T) { return load(from + at + lanes); });
        store(y + at, first);
        store(y + at + lanes, second);
    }
    for (; at + lanes <= size; at += lanes) {
        store(y + at, map([&](const T* from, T) { return load(from + at); }));
    }
    if (at < size) {
        const std::int64_t rest = size - at;
        store_part(y + at, map([&](const T* from, T fill) { return load_part(from + at, rest, fill); }), rest);
    }
}

// The sum of map(read) over [begin, begin + size) of a row. `map` must return 0 for lanes that contain `fill`.
template <typename T, typename Map>
inline T sum_row(std::int64_t begin, std::int64_t size, Map&& map) {
    if (size > kRowBlock) {
        const std::int64_t half = (size / 2 + kRowBlock - 1) / kRowBlock * kRowBlock;
        const T first = sum_row<T>(begin, half, map);  // first half first, in the order of memory
        return first + sum_row<T>(begin + half, size - half, map);
    }
    constexpr std::int64_t lanes = kLanes<T>;
    Vector<T> sums[4] = {};
    std::int64_t at = begin;
    const std::int64_t end = begin + size;
    for (; at + 4 * lanes <= end; at += 4 * lanes) {
#pragma GCC unroll 4
        for (int way = 0; way < 4; ++way) {
            sums[way] += map(WholeVector<T>{at + way * lanes});
        }
    }
    for (; at + lanes <= end; at += lanes) {
        sums[0] += map(WholeVector<T>{at});
    }
    if (at < end) {
        sums[1] += map(PartOfVector<T>{at, end - at});
    }
    return across<Add, T>((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace
}  // namespace graphkit
