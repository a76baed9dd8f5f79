// Products of rows with two blocks of filters at once. For *.isa.cpp only.
//
// If the registers hold the sums of kPairRows rows, each element of a row is loaded once for twice as many products as
// with one block.
#pragma once

#include <algorithm>
#include <utility>

#include "kernels/conv/tiles.h"

namespace graphkit {
namespace {

constexpr int kPair = 2;
constexpr int kPairRows = 6;
constexpr std::int64_t kPairTiles = 5 * kPairRows;
#if defined(__AVX512F__)
constexpr bool kHasPairs = true;
#else
constexpr bool kHasPairs = false;
#endif

// Windows that are `step` floats apart. Each has `lines` lines of `elements`, `line_step` floats apart.
struct Windows {
    const float* first;
    std::int64_t step;
    std::int64_t lines, elements, line_step;
};

// Some elements of windows, times kPair blocks of filters that are `apart` floats apart.
struct PairChain {
    Windows windows;
    const float* filters;
    std::int64_t apart;
    const float* next;  // filters to prefetch; null for the first rows that are multiplied by these filters
    float* products;  // of each window with the blocks
    bool adds;  // there are sums over earlier elements in `products`
    const Finish* finishes;  // of each block; null if more elements follow
    std::int64_t position;
};

constexpr std::int64_t kCacheLine = 64 / sizeof(float);

// sums += rows [Rows, elements], `step` floats apart, times kPair blocks of filters [elements, kBlock], `apart` floats
// apart. If `next` is null, the filters kAhead elements later are prefetched. Otherwise, they are in the first-level
// cache, and as many cache lines from `next` on are prefetched as there are elements.
template <int Rows>
[[gnu::always_inline]] inline void add_pair(const float* rows, std::int64_t step, const float* filters,
                                            std::int64_t apart, const float* next, std::int64_t elements,
                                            Lanes (&sums)[Rows][kPair * kVectors]) {
    const auto add = [&](std::int64_t e, auto&& fetch) {
        Lanes factors[kPair * kVectors];
        for (int v = 0; v < kPair * kVectors; ++v) {
            const float* filter = filters + v / kVectors * apart + e * kBlock + v % kVectors * kWide;
            factors[v] = load<float>(filter);
            fetch(filter + kAhead * kBlock, v);
        }
        for (int r = 0; r < Rows; ++r) {
            const Lanes element = splat(rows[r * step + e]);
            for (int v = 0; v < kPair * kVectors; ++v) {
                sums[r][v] += element * factors[v];
            }
        }
    };
    if (next == nullptr) {
        for (std::int64_t e = 0; e < elements; ++e) {
            add(e, [](const float* later, int) { __builtin_prefetch(later, 0, 3); });
        }
        return;
    }
    for (std::int64_t e = 0; e < elements; ++e) {
        add(e, [&](const float*, int v) {
            if (v == 0) {
                __builtin_prefetch(next + e * kCacheLine, 0, 2);
            }
        });
    }
}

// Computes `Rows` windows.
template <int Rows>
__attribute__((noinline)) void multiply_pair_rows(const PairChain& chain) {
    const Windows& windows = chain.windows;
    Lanes sums[Rows][kPair * kVectors] = {};
    for (std::int64_t i = 0; i < windows.lines; ++i) {
        add_pair(windows.first + i * windows.line_step, windows.step, chain.filters + i * windows.elements * kBlock,
                 chain.apart, chain.next, windows.elements, sums);
    }
    end_chain<kPair * kBlock>(sums, chain.products, chain.adds, chain.finishes, chain.position);
}

template <int... Less>
constexpr auto pair_of_rows(std::int64_t rows, std::integer_sequence<int, Less...>) {
    constexpr void (*all[])(const PairChain&) = {multiply_pair_rows<Less + 1>...};
    return all[rows - 1];
}

// Computes `count` windows from those of `chain` on. `next`: the filters that will be read after those of the chain.
inline void multiply_pairs(PairChain chain, std::int64_t count, const float* next) {
    const std::int64_t parts = (count + kPairRows - 1) / kPairRows;
    for (std::int64_t part = 0; part < parts; ++part) {
        const std::int64_t some = (count + parts - part - 1) / (parts - part);
        pair_of_rows(some, std::make_integer_sequence<int, kPairRows>())(chain);
        chain.next = part == 0 ? next : chain.next + chain.windows.elements * kCacheLine;
        chain.windows.first += some * chain.windows.step;
        chain.products += some * kPair * kBlock;
        chain.position += some;
        count -= some;
    }
}

}  // namespace
}  // namespace graphkit
