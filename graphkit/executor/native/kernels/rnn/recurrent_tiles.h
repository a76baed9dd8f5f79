// Products of a few rows with a panel, in registers. Recurrent cells and their gradients use them.
#pragma once

#include "kernels/rnn/gates.h"

namespace graphkit {
namespace {

constexpr std::int64_t kUnits = kLanes<float>;
// Rows of a tile: with four vectors each, they fill the registers.
constexpr int kTileRows = kVectorBytes == 64 ? 6 : 3;

template <int V>
using Row = Floats[V];

// sums[r] += left[r] @ panel; the sum over the depth is split into `Split` interleaved sums. Inlined everywhere,
// because the sums of a function that is called are in memory.
template <int V, int Rows, int Split>
[[gnu::always_inline]] inline void multiply(const float* const (&left)[Rows], std::int64_t depth, const float* panel,
                                            Row<V> (&sums)[Rows]) {
    Row<V> parts[Split][Rows];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
            parts[0][r][v] = sums[r][v];
#pragma GCC unroll 2
            for (int s = 1; s < Split; ++s) {
                parts[s][r][v] = Floats{};
            }
        }
    }
    const auto add = [&](Row<V>(&to)[Rows], std::int64_t k) __attribute__((always_inline)) {
        Floats x[Rows];
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            x[r] = splat(left[r][k]);
        }
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
            const Floats w = in_register(load(panel + (k * V + v) * kUnits));
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
                to[r][v] += w * x[r];
            }
        }
    };
    std::int64_t k = 0;
    for (; k + Split <= depth; k += Split) {
#pragma GCC unroll 2
        for (int s = 0; s < Split; ++s) {
            add(parts[s], k + s);
        }
    }
    for (; k < depth; ++k) {
        add(parts[0], k);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
            sums[r][v] = parts[0][r][v];
#pragma GCC unroll 2
            for (int s = 1; s < Split; ++s) {
                sums[r][v] += parts[s][r][v];
            }
        }
    }
}

// Calls tile.operator()<Rows>(first) for rows [begin, end), in tiles of nearly equal height.
template <typename Tile>
inline void for_tiles(std::int64_t begin, std::int64_t end, Tile&& tile) {
    const std::int64_t rows = end - begin;
    const std::int64_t tiles = (rows + kTileRows - 1) / kTileRows;
    for (std::int64_t i = 0; i < tiles; ++i) {
        const std::int64_t first = begin + rows * i / tiles;
        switch (begin + rows * (i + 1) / tiles - first) {
            case 1:
                tile.template operator()<1>(first);
                break;
            case 2:
                tile.template operator()<2>(first);
                break;
            case 3:
                tile.template operator()<3>(first);
                break;
#if defined(__AVX512F__)
            case 4:
                tile.template operator()<4>(first);
                break;
            case 5:
                tile.template operator()<5>(first);
                break;
            case 6:
                tile.template operator()<6>(first);
                break;
#endif
            default:
                __builtin_unreachable();
        }
    }
}

}  // namespace
}  // namespace graphkit
