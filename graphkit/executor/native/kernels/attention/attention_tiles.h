// Functions that attention and its gradient share: transposes, tiles of products, and masks of scores, whose last axis
// are the queries. For *.isa.cpp only.
#pragma once

#include <utility>

#include "kernels/attention/attention_table.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

// A tile of products has kTileRows x Width accumulators, which fill the registers.
#if defined(__AVX512F__)
constexpr int kTileRows = 12;
#else
constexpr int kTileRows = 6;
#endif
constexpr int kMostWidth = 2;  // vectors of queries
constexpr std::int64_t kKeyBlock = 96;
constexpr float kInfinite = std::numeric_limits<float>::infinity();

using Lanes = Vector<float>;

using Quad = VectorOf<float, 16>::type;
// One byte for each lane of a vector of floats.
using LaneBytes = VectorOf<std::uint8_t, kLanes<float>>::type;

inline void transpose(Quad (&r)[4]) {
    const Quad low01 = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
    const Quad low23 = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
    const Quad high01 = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
    const Quad high23 = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
    r[0] = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
    r[1] = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
    r[2] = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
    r[3] = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
}

// Transposes a square of bytes, in rounds that interleave the first half of the rows with the second half.
template <int... I>
inline void transpose(LaneBytes (&rows)[sizeof...(I)], std::integer_sequence<int, I...>) {
    constexpr int kRows = sizeof...(I);
    for (int round = 1; round < kRows; round *= 2) {
        LaneBytes mixed[kRows];
#pragma GCC unroll 8
        for (int r = 0; r < kRows / 2; ++r) {
            const LaneBytes a = rows[r];
            const LaneBytes b = rows[r + kRows / 2];
            mixed[2 * r] = __builtin_shufflevector(a, b, (I / 2 + I % 2 * kRows)...);
            mixed[2 * r + 1] = __builtin_shufflevector(a, b, (kRows / 2 + I / 2 + I % 2 * kRows)...);
        }
        __builtin_memcpy(rows, mixed, sizeof mixed);
    }
}

// Calls whole(i, j) for tiles of 4 x 4 elements of [0, rows) x [0, columns), and single(i, j) for the other elements.
template <typename Whole, typename Single>
inline void for_each_tile(std::int64_t rows, std::int64_t columns, Whole&& whole, Single&& single) {
    std::int64_t i = 0;
    for (; i + 4 <= rows; i += 4) {
        std::int64_t j = 0;
        for (; j + 4 <= columns; j += 4) {
            whole(i, j);
        }
        for (; j < columns; ++j) {
            for (std::int64_t row = i; row < i + 4; ++row) {
                single(row, j);
            }
        }
    }
    for (; i < rows; ++i) {
        for (std::int64_t j = 0; j < columns; ++j) {
            single(i, j);
        }
    }
}

// to[j * to_stride + i] = map(from[i * from_stride + j], to[j * to_stride + i]). `map` takes both floats and Quads.
template <typename Map>
inline void transpose_into(const float* from, std::int64_t from_stride, std::int64_t rows, std::int64_t columns,
                           float* to, std::int64_t to_stride, Map&& map) {
    for_each_tile(
        rows, columns,
        [&](std::int64_t i, std::int64_t j) {
            Quad tile[4];
            for (int r = 0; r < 4; ++r) {
                __builtin_memcpy(&tile[r], from + (i + r) * from_stride + j, sizeof(Quad));
            }
            transpose(tile);
            for (int r = 0; r < 4; ++r) {
                float* target = to + (j + r) * to_stride + i;
                Quad old;
                __builtin_memcpy(&old, target, sizeof(Quad));
                const Quad mapped = map(tile[r], old);
                __builtin_memcpy(target, &mapped, sizeof(Quad));
            }
        },
        [&](std::int64_t i, std::int64_t j) {
            float& target = to[j * to_stride + i];
            target = map(from[i * from_stride + j], target);
        });
}

// total[r][w] += element(r, i) * columns[i * stride + w * lanes] over i < depth.
template <int Rows, int Width, typename Element>
inline void multiply(std::int64_t depth, Element&& element, const float* columns, std::int64_t stride,
                     Lanes (&total)[Rows][Width]) {
    for (std::int64_t i = 0; i < depth; ++i) {
        Lanes column[Width];
#pragma GCC unroll 2
        for (int w = 0; w < Width; ++w) {
            column[w] = load(columns + i * stride + w * kLanes<float>);
        }
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r) {
            const Lanes factor = splat(element(r, i));
#pragma GCC unroll 2
            for (int w = 0; w < Width; ++w) {
                total[r][w] += factor * column[w];
            }
        }
    }
}

// Calls body.operator()<Rows>(first) for tiles of at most kTileRows rows that cover [0, rows).
template <typename Body>
inline void for_each_row_tile(std::int64_t rows, Body&& body) {
    std::int64_t row = 0;
    for (; row + kTileRows <= rows; row += kTileRows) {
        body.template operator()<kTileRows>(row);
    }
    for (; row + 4 <= rows; row += 4) {
        body.template operator()<4>(row);
    }
    for (; row < rows; ++row) {
        body.template operator()<1>(row);
    }
}

// products[r, queries] = `rows` rows of `depth` at `left`, times queries [depth, Width vectors].
template <int Width>
void multiply_queries(const float* left, std::int64_t left_stride, std::int64_t rows, std::int64_t depth,
                      const float* queries, float* products) {
    constexpr std::int64_t width = Width * kLanes<float>;
    for_each_row_tile(rows, [&]<int Rows>(std::int64_t row) {
        const float* from = left + row * left_stride;
        Lanes total[Rows][Width] = {};
        multiply<Rows, Width>(
            depth, [&](int r, std::int64_t i) { return from[r * left_stride + i]; }, queries, width, total);
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
            for (int w = 0; w < Width; ++w) {
                store(products + (row + r) * width + w * kLanes<float>, total[r][w]);
            }
        }
    });
}

// Replaces each vector of scores [keys, Width vectors] by body(key, w, vector).
template <int Width, typename Body>
inline void map_scores(std::int64_t keys, float* scores, Body&& body) {
    for (std::int64_t key = 0; key < keys; ++key) {
        for (int w = 0; w < Width; ++w) {
            float* at = scores + (key * Width + w) * kLanes<float>;
            store(at, body(key, w, load(at)));
        }
    }
}

// Sets scores [keys, Width vectors] to `value` where a boolean mask hides the key from one of `rows` rows. The keys
// begin at `first`.
template <int Width>
void hide_invisible(const ScoreMask& mask, std::int64_t rows, std::int64_t first, std::int64_t keys, float value,
                    float* scores) {
    constexpr std::int64_t width = Width * kLanes<float>;
    if (mask.visible == nullptr) {
        return;
    }
    const std::uint8_t* visible = mask.visible + first * mask.mask_key;
    if (mask.mask_row == 0) {
        map_scores<Width>(keys, scores, [&](std::int64_t key, int, Lanes s) {
            return visible[key * mask.mask_key] != 0 ? s : splat(value);
        });
        return;
    }
    const std::int64_t whole_rows = mask.mask_key == 1 ? rows / kLanes<float> * kLanes<float> : 0;
    const LaneBytes ones = LaneBytes{} + std::uint8_t{1};
    const std::int64_t whole_keys = keys / kLanes<float> * kLanes<float>;
    for (std::int64_t row = 0; row < whole_rows; row += kLanes<float>) {
        for (std::int64_t key = 0; key < whole_keys; key += kLanes<float>) {
            LaneBytes tile[kLanes<float>];
            LaneBytes every{};
            for (int r = 0; r < kLanes<float>; ++r) {
                __builtin_memcpy(&tile[r], visible + (row + r) * mask.mask_row + key, sizeof(LaneBytes));
                every = r == 0 ? tile[r] : every & tile[r];
            }
            if (__builtin_memcmp(&every, &ones, sizeof ones) == 0) {
                continue;
            }
            transpose(tile, std::make_integer_sequence<int, kLanes<float>>());
            for (int k = 0; k < kLanes<float>; ++k) {
                float* at = scores + (key + k) * width + row;
                const auto seen = __builtin_convertvector(tile[k], Vector<std::int32_t>);
                store(at, seen != 0 ? load(at) : splat(value));
            }
        }
    }
    for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t key = row < whole_rows ? whole_keys : 0; key < keys; ++key) {
            float& s = scores[key * width + row];
            s = visible[row * mask.mask_row + key * mask.mask_key] != 0 ? s : value;
        }
    }
}

// Sets scores to `value` where a causal query does not see the key.
template <int Width>
void hide_future(const ScoreMask& mask, std::int64_t first, std::int64_t keys, float value, float* scores) {
    if (first + keys - 1 <= mask.causal_offset) {
        return;
    }
    Vector<float> lane{};
    for (int i = 0; i < kLanes<float>; ++i) {
        lane[i] = static_cast<float>(i);
    }
    map_scores<Width>(keys, scores, [&](std::int64_t key, int w, Lanes s) {
        // The first lane whose query sees the key.
        const std::int64_t seen = first + key - mask.causal_offset - w * kLanes<float>;
        const std::int64_t bound = seen < 0 ? 0 : seen < kLanes<float> ? seen : kLanes<float>;
        return lane < static_cast<float>(bound) ? splat(value) : s;
    });
}

// Applies the mask to scores [keys, Width vectors] of `rows` rows. The keys begin at `first`.
template <int Width>
void mask_scores(const ScoreMask& mask, std::int64_t rows, std::int64_t first, std::int64_t keys, float* scores) {
    constexpr std::int64_t width = Width * kLanes<float>;
    if (mask.added != nullptr) {
        const float* added = mask.added + first * mask.mask_key;
        if (mask.mask_row == 0) {
            map_scores<Width>(keys, scores,
                              [&](std::int64_t key, int, Lanes s) { return s + added[key * mask.mask_key]; });
        } else if (mask.mask_key == 1) {
            transpose_into(added, mask.mask_row, rows, keys, scores, width,
                           [](auto number, auto s) { return s + number; });
        } else {
            for (std::int64_t key = 0; key < keys; ++key) {
                for (std::int64_t row = 0; row < rows; ++row) {
                    scores[key * width + row] += added[row * mask.mask_row + key * mask.mask_key];
                }
            }
        }
    }
    hide_invisible<Width>(mask, rows, first, keys, mask.hidden_score, scores);
    hide_future<Width>(mask, first, keys, -kInfinite, scores);
}

}  // namespace
}  // namespace graphkit
