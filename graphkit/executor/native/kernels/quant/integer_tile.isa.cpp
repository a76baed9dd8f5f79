// Tiles of a product of bytes in registers. See integer_table.h.
#include "kernels/quant/byte_lanes.h"
#include "kernels/quant/integer_table.h"

namespace graphkit {
namespace {

// Vectors of columns in a tile.
#if defined(__AVX512F__)
constexpr int kDotVectors = 4;
constexpr int kWidenedVectors = 2;
constexpr int kWidenedRows = 6;
#else
constexpr int kWidenedVectors = 2;
constexpr int kWidenedRows = 4;
#endif

// Stores the results of some vectors of a row; `at` is their first column.
template <IntegerResult Result, int Vectors>
inline __attribute__((always_inline)) void finish(const IntegerBlock& block, const Sums (&totals)[Vectors],
                                                  std::int64_t row, std::int64_t at) {
    const std::int64_t place = row * block.stride + at;
    const std::int64_t left = block.columns - at;
    if constexpr (Result == IntegerResult::bytes) {
        auto* y = static_cast<std::uint8_t*>(block.y) + place;
        Sums whole[Vectors];
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) {
            whole[v] = nearest_below(as_reals(totals[v]) * load(block.factors + at + v * kSums), block.bytes.high);
        }
#if defined(__AVX512F__)
        if constexpr (Vectors > 1) {
            return store_rounded<Vectors>(y, whole, block.bytes, left);
        }
#endif
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) {
            store_rounded(y + v * kSums, whole[v], block.bytes, left - v * kSums);
        }
    } else {
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) {
            const std::int64_t first = v * kSums;
            if constexpr (Result == IntegerResult::sums) {
                store_sums(static_cast<std::int32_t*>(block.y) + place + first, totals[v], left - first);
            } else {
                const Reals product = as_reals(totals[v]) * load(block.factors + at + first);
                const Reals y = block.bias == nullptr ? product : product + load(block.bias + at + first);
                store_reals(static_cast<float*>(block.y) + place + first, y, left - first);
            }
        }
    }
}

// How a tile uses the bytes of x: as they are; with flipped bits; or with flipped bits, and their sums are subtracted.
enum class Bytes : std::uint8_t { plain, flipped, summed };

// Computes a tile of Rows x Vectors from row `first` and column `at` on.
template <typename Products, int Rows, int Vectors, Bytes Use, IntegerResult Result>
void tile(const IntegerBlock& block, std::int64_t first, std::int64_t at) {
    // A copy, since the compiler must assume that stored bytes may change `block`.
    const IntegerBlock mine = block;
    const std::int64_t panel = block.taps * block.quads * kSums * kTerms;
    const std::int8_t* weights = block.panels + at / kSums * panel;
    const Sums flip = splat(static_cast<std::int32_t>(block.flip * 0x01010101U));
    const auto ones = Products::right(splat(0x01010101));
    Sums totals[Rows][Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
        const Sums offset = load(block.offsets + at + v * kSums);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            totals[r][v] = offset;
        }
    }
    Sums bytes[Rows] = {};
    for (std::int64_t tap = 0; tap < block.taps; ++tap) {
        const std::uint8_t* rows[Rows];
        for (int r = 0; r < Rows; ++r) {
            rows[r] = block.rows[tap * kBlockRows + first + r];
        }
        for (std::int64_t quad = 0; quad < block.quads; ++quad) {
            typename Products::Right w[Vectors];
#pragma GCC unroll 8
            for (int v = 0; v < Vectors; ++v) {
                Sums loaded;
                __builtin_memcpy(&loaded, weights + v * panel, sizeof loaded);
                w[v] = Products::right(Rows == 1 ? loaded : in_register(loaded));
            }
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
                const Sums four = four_bytes(rows[r] + quad * kTerms);
                // Flipping would need the execution units that multiply.
                const auto x = Products::left(Use == Bytes::plain ? four : four ^ flip);
                if constexpr (Use == Bytes::summed) {
                    Products::add(bytes[r], x, ones);
                }
#pragma GCC unroll 8
                for (int v = 0; v < Vectors; ++v) {
                    Products::add(totals[r][v], x, w[v]);
                }
            }
            weights += kSums * kTerms;
        }
    }
    if constexpr (Use == Bytes::summed) {
        for (int v = 0; v < Vectors; ++v) {
            const Sums zeros = load(block.zeros + at + v * kSums);
            for (int r = 0; r < Rows; ++r) {
                totals[r][v] -= bytes[r] * zeros;
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
        finish<Result, Vectors>(mine, totals[r], first + r, at);
    }
}

template <typename Products, int Vectors, Bytes Use, IntegerResult Result>
void rows_of(const IntegerBlock& block, std::int64_t at, int most) {
    std::int64_t row = 0;
    const std::int64_t rows = block.row_count;
    if (most == 6) {
        for (; row + 6 <= rows; row += 6) {
            tile<Products, 6, Vectors, Use, Result>(block, row, at);
        }
    }
    // Few rows are multiplied by one tile, because each tile reads the weights again.
    if (most == 6 && row + 5 == rows) {
        return tile<Products, 5, Vectors, Use, Result>(block, row, at);
    }
    for (; row + 4 <= rows; row += 4) {
        tile<Products, 4, Vectors, Use, Result>(block, row, at);
    }
    if (row + 3 == rows) {
        return tile<Products, 3, Vectors, Use, Result>(block, row, at);
    }
    for (; row + 2 <= rows; row += 2) {
        tile<Products, 2, Vectors, Use, Result>(block, row, at);
    }
    if (row < rows) {
        tile<Products, 1, Vectors, Use, Result>(block, row, at);
    }
}

template <typename Products, int Vectors, int Rows, Bytes Use, IntegerResult Result>
void columns_of(const IntegerBlock& block) {
    const std::int64_t vectors = (block.columns + kSums - 1) / kSums;
    std::int64_t at = 0;
    if constexpr (Vectors == 4) {
        for (; at + 4 <= vectors; at += 4) {
            rows_of<Products, 4, Use, Result>(block, at * kSums, Rows);
        }
    }
    for (; at + 2 <= vectors; at += 2) {
        rows_of<Products, 2, Use, Result>(block, at * kSums, Rows);
    }
    if (at < vectors) {
        rows_of<Products, 1, Use, Result>(block, at * kSums, Rows);
    }
}

template <typename Products, int Vectors, int Rows, IntegerResult Result>
void product_of(const IntegerBlock& block) {
    if (block.zeros != nullptr) {  // the sums of bytes need registers
        return columns_of<Products, 2, Rows, Bytes::summed, Result>(block);
    }
    block.flip == 0 ? columns_of<Products, Vectors, Rows, Bytes::plain, Result>(block)
                    : columns_of<Products, Vectors, Rows, Bytes::flipped, Result>(block);
}

template <typename Products, int Vectors, int Rows>
void product(const IntegerBlock& block) {
    switch (block.result) {
        case IntegerResult::sums:
            return product_of<Products, Vectors, Rows, IntegerResult::sums>(block);
        case IntegerResult::bytes:
            return product_of<Products, Vectors, Rows, IntegerResult::bytes>(block);
        case IntegerResult::reals:
            return product_of<Products, Vectors, Rows, IntegerResult::reals>(block);
    }
}

// --- packing ----------------------------------------------------------------------------------------

// Four rows of kSums bytes, one after the other, become kSums columns of four bytes.
inline Sums interleaved(Sums rows) {
#if defined(__AVX512F__)
    // Each 16 bytes receive four columns of all rows, which are then transposed.
    const __m512i columns = _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), bit_cast<__m512i>(rows));
    const __m128i transposed = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return bit_cast<Sums>(_mm512_shuffle_epi8(columns, _mm512_broadcast_i32x4(transposed)));
#elif defined(__AVX2__)
    const __m256i columns =
        _mm256_permutevar8x32_epi32(bit_cast<__m256i>(rows), _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
    const __m128i transposed = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return bit_cast<Sums>(_mm256_shuffle_epi8(columns, _mm256_broadcastsi128_si256(transposed)));
#else
    const auto v = bit_cast<VectorOf<std::int8_t, kVectorBytes>::type>(rows);
    return bit_cast<Sums>(__builtin_shufflevector(v, v, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
#endif
}

// Adds the four signed bytes of each column.
inline Sums with_bytes_of(Sums sums, Sums bytes) {
#if defined(__AVX512BW__)
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_set1_epi8(1), bit_cast<__m512i>(bytes));
    return sums + bit_cast<Sums>(_mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#elif defined(__AVX2__)
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bit_cast<__m256i>(bytes));
    return sums + bit_cast<Sums>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#else
    return sums + (bytes << 24 >> 24) + (bytes << 16 >> 24) + (bytes << 8 >> 24) + (bytes >> 24);
#endif
}

// The first kSums bytes of four rows, which are `stride` apart.
inline Sums load_rows(const std::int8_t* from, std::int64_t stride) {
#if defined(__AVX512F__)
    const auto row = [&](std::int64_t k) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + k * stride));
    };
    __m512i rows = _mm512_castsi128_si512(row(0));
    rows = _mm512_mask_broadcast_i32x4(rows, 0x00f0, row(1));
    rows = _mm512_mask_broadcast_i32x4(rows, 0x0f00, row(2));
    return bit_cast<Sums>(_mm512_mask_broadcast_i32x4(rows, 0xf000, row(3)));
#else
    Sums rows;
    for (std::int64_t k = 0; k < kTerms; ++k) {
        __builtin_memcpy(reinterpret_cast<std::int8_t*>(&rows) + k * kSums, from + k * stride, kSums);
    }
    return rows;
#endif
}

// The same for fewer rows or columns. The other bytes are 0 after they are flipped.
inline Sums load_some_rows(const std::int8_t* from, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                           std::uint8_t flip) {
    std::int8_t bytes[kTerms][kSums];
    __builtin_memset(bytes, flip, sizeof bytes);
    for (std::int64_t k = 0; k < kTerms && k < rows; ++k) {
        __builtin_memcpy(bytes[k], from + k * stride, static_cast<std::size_t>(columns));
    }
    Sums loaded;
    __builtin_memcpy(&loaded, bytes, sizeof loaded);
    return loaded;
}

void pack_panels(const std::int8_t* w, std::int64_t stride, std::int64_t terms, std::int64_t columns,
                 std::int64_t panels, std::uint8_t flip, std::int8_t* to, std::int32_t* sums) {
    constexpr std::int64_t kQuadBytes = kSums * kTerms;
    const std::int64_t panel_bytes = (terms + kTerms - 1) / kTerms * kQuadBytes;
    const Sums flips = splat(static_cast<std::int32_t>(flip * 0x01010101U));
    Sums totals[kPackedTogether] = {};
    for (std::int64_t term = 0; term < terms; term += kTerms, to += kQuadBytes) {
        for (std::int64_t panel = 0; panel < panels; ++panel) {
            const std::int8_t* const from = w + term * stride + panel * kSums;
            const std::int64_t some = columns - panel * kSums;
            const Sums rows = term + kTerms <= terms && some >= kSums
                                  ? load_rows(from, stride)
                                  : load_some_rows(from, stride, terms - term, some < kSums ? some : kSums, flip);
            const Sums quad = interleaved(rows ^ flips);
            totals[panel] = with_bytes_of(totals[panel], quad);
            __builtin_memcpy(to + panel * panel_bytes, &quad, sizeof quad);
        }
    }
    for (std::int64_t panel = 0; panel < panels; ++panel) {
        store(sums + panel * kSums, totals[panel]);
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(IntegerFunctions, integer_functions) = {
    kSums,
    pack_panels,
    product<WidenedProducts, kWidenedVectors, kWidenedRows>,
#if defined(__AVX512F__)
    product<DotProducts, kDotVectors, 6>,
#else
    nullptr,
#endif
};

}  // namespace graphkit
