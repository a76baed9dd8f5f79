// Transposition of tiles in registers: pairs of rows exchange blocks of decreasing size (Eklundh 1972).
#include <cstddef>
#include <utility>

#include "primitives/strided_copy.h"
#include "simd/narrow_rows.h"

namespace graphkit {
namespace {

template <typename T, int Lanes>
using Row = typename VectorOf<T, static_cast<int>(sizeof(T)) * Lanes>::type;

// Blocks of `Block` elements of rows `a` and `b` are alternately even and odd. Returns the even (or odd) blocks of both
// rows, side by side.
template <int Block, bool Odd, typename V, int... Lane>
inline V exchanged(V a, V b, std::integer_sequence<int, Lane...>) {
    constexpr int kLanesOf = sizeof...(Lane);
    return __builtin_shufflevector(
        a, b, ((Lane / Block) % 2 == 0 ? Lane + (Odd ? Block : 0) : Lane - (Odd ? 0 : Block) + kLanesOf)...);
}

template <int Block, typename T, int N>
inline void exchange(Row<T, N>* rows) {
    if constexpr (Block > 0) {
        for (int first = 0; first < N; first += 2 * Block) {
            for (int i = first; i < first + Block; ++i) {
                const Row<T, N> a = rows[i];
                const Row<T, N> b = rows[i + Block];
                rows[i] = exchanged<Block, false>(a, b, std::make_integer_sequence<int, N>());
                rows[i + Block] = exchanged<Block, true>(a, b, std::make_integer_sequence<int, N>());
            }
        }
        exchange<Block / 2, T, N>(rows);
    }
}

template <typename V>
inline void store_past_caches(std::byte* to, V row) {
#if defined(__AVX512F__)
    if constexpr (sizeof(V) == 64) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to), bit_cast<__m512i>(row));
        return;
    }
#endif
#if defined(__AVX2__)
    if constexpr (sizeof(V) == 32) {
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to), bit_cast<__m256i>(row));
        return;
    }
#endif
    __builtin_memcpy(to, &row, sizeof row);
}

#if defined(__AVX512F__)
// Loads 16 rows of 16 floats. Each quarter of a register is loaded from another row, so that only the 4 x 4 floats of
// the quarters remain to be exchanged.
inline void load_transposed(const std::byte* from, std::int64_t stride, Row<std::uint32_t, 16>* rows) {
    const auto quarter = [&](std::int64_t row, int column) {
        return _mm_loadu_ps(reinterpret_cast<const float*>(from + row * stride) + column);
    };
#pragma GCC unroll 4
    for (int q = 0; q < 16; q += 4) {
        __m512 x[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            x[i] = _mm512_castps128_ps512(quarter(i, q));
            x[i] = _mm512_mask_broadcast_f32x4(x[i], 0x00f0, quarter(4 + i, q));
            x[i] = _mm512_mask_broadcast_f32x4(x[i], 0x0f00, quarter(8 + i, q));
            x[i] = _mm512_mask_broadcast_f32x4(x[i], 0xf000, quarter(12 + i, q));
        }
        const __m512d low01 = _mm512_castps_pd(_mm512_unpacklo_ps(x[0], x[1]));
        const __m512d high01 = _mm512_castps_pd(_mm512_unpackhi_ps(x[0], x[1]));
        const __m512d low23 = _mm512_castps_pd(_mm512_unpacklo_ps(x[2], x[3]));
        const __m512d high23 = _mm512_castps_pd(_mm512_unpackhi_ps(x[2], x[3]));
        rows[q] = bit_cast<Row<std::uint32_t, 16>>(_mm512_unpacklo_pd(low01, low23));
        rows[q + 1] = bit_cast<Row<std::uint32_t, 16>>(_mm512_unpackhi_pd(low01, low23));
        rows[q + 2] = bit_cast<Row<std::uint32_t, 16>>(_mm512_unpacklo_pd(high01, high23));
        rows[q + 3] = bit_cast<Row<std::uint32_t, 16>>(_mm512_unpackhi_pd(high01, high23));
    }
}
#endif

template <typename T, int N>
inline void load_transposed(const std::byte* from, std::int64_t stride, Row<T, N>* rows) {
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
        __builtin_memcpy(&rows[i], from + i * stride, sizeof rows[i]);
    }
    exchange<N / 2, T, N>(rows);
}

// Transposes a tile of N x N elements; with Stream, `to` is aligned to a row.
template <typename T, int N, bool Stream>
inline void transpose_tile(const std::byte* from, std::byte* to, std::int64_t source_stride,
                           std::int64_t target_stride) {
    Row<T, N> rows[N];
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4 && N == 16) {
        load_transposed(from, source_stride, rows);
    } else {
        load_transposed<T, N>(from, source_stride, rows);
    }
#else
    load_transposed<T, N>(from, source_stride, rows);
#endif
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
        if constexpr (Stream) {
            store_past_caches(to + i * target_stride, rows[i]);
        } else {
            __builtin_memcpy(to + i * target_stride, &rows[i], sizeof rows[i]);
        }
    }
}

// Rows of the target have `columns` elements. The last tile along each side may write some elements again. If the block
// is smaller than a tile of N x N, it is transposed in smaller tiles.
template <typename T, int N, bool Stream>
void transpose_block(const std::byte* from, std::byte* to, std::int64_t source_stride, std::int64_t target_stride,
                     std::int64_t rows, std::int64_t columns) {
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
    if constexpr (N * sizeof(T) < 8 || N < 2) {
        for (std::int64_t a = 0; a < rows; ++a) {
            for (std::int64_t b = 0; b < columns; ++b) {
                __builtin_memcpy(to + a * target_stride + b * kSize, from + a * kSize + b * source_stride, sizeof(T));
            }
        }
    } else if (rows < N || columns < N) {
        transpose_block<T, N / 2, false>(from, to, source_stride, target_stride, rows, columns);
    } else {
        for (std::int64_t a = 0; a < rows; a += N) {
            const std::int64_t row = a + N <= rows ? a : rows - N;
            std::int64_t b = 0;
            for (; b + N <= columns; b += N) {
                transpose_tile<T, N, Stream>(from + row * kSize + b * source_stride,
                                             to + row * target_stride + b * kSize, source_stride, target_stride);
            }
            if (b < columns) {
                b = columns - N;
                transpose_tile<T, N, false>(from + row * kSize + b * source_stride,
                                            to + row * target_stride + b * kSize, source_stride, target_stride);
            }
        }
    }
}

// Rows of a tile: at most 16, so that it stays in registers.
template <typename T>
constexpr int kTile = static_cast<int>(kLanes<T> < 16 ? kLanes<T> : 16);

template <typename T>
void transpose(const std::byte* from, std::byte* to, std::int64_t source_stride, std::int64_t target_stride,
               std::int64_t rows, std::int64_t columns, bool stream) {
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
    if (rows >= 2 && rows <= kNarrow && source_stride == rows * kSize && target_stride % kSize == 0) {
        return with_columns(rows, [&](auto narrow) {
            split_rows<T, decltype(narrow)::value, true>(from, to, target_stride / kSize, columns);
        });
    }
    if (columns >= 2 && columns <= kNarrow && target_stride == columns * kSize && source_stride % kSize == 0) {
        return with_columns(columns, [&](auto narrow) {
            join_columns<T, decltype(narrow)::value>(from, to, source_stride / kSize, rows);
        });
    }
    constexpr bool kStreams = kTile<T> * sizeof(T) >= 32;
    if (kStreams && stream && reinterpret_cast<std::uintptr_t>(to) % (kTile<T> * sizeof(T)) == 0) {
        transpose_block<T, kTile<T>, kStreams>(from, to, source_stride, target_stride, rows, columns);
    } else {
        transpose_block<T, kTile<T>, false>(from, to, source_stride, target_stride, rows, columns);
    }
}

void fill(std::byte* target, const std::byte* line, std::int64_t bytes) {
    constexpr std::int64_t kLine = 64;
    Vector<std::uint8_t> parts[kLine / kVectorBytes];
    __builtin_memcpy(parts, line, sizeof parts);
    std::int64_t at = 0;
    for (; at + kLine <= bytes; at += kLine) {
        __builtin_memcpy(target + at, parts, sizeof parts);
    }
    __builtin_memcpy(target + at, line, static_cast<std::size_t>(bytes - at));
}

}  // namespace

GRAPHKIT_ISA_DEFINE(TransposeTable, transpose_table) = {
    {transpose<std::uint8_t>, transpose<std::uint16_t>, transpose<std::uint32_t>, transpose<std::uint64_t>}, fill};

}  // namespace graphkit
