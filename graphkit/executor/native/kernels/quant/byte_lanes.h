// Vectors of int32 sums: adding products of bytes to them, and converting them to bytes or floats. For *.isa.cpp only.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/quant/integer_table.h"
#include "simd/vector.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace graphkit {
namespace {

using Sums = Vector<std::int32_t>;
using Reals = Vector<float>;
constexpr std::int64_t kSums = kLanes<std::int32_t>;
constexpr std::int32_t kLeastSum = std::numeric_limits<std::int32_t>::min();

// Repeats four bytes in every lane.
inline Sums four_bytes(const std::uint8_t* from) {
    std::int32_t value;
    std::memcpy(&value, from, sizeof value);
    return splat(value);
}

#if defined(__AVX512F__)
// Uses the processor's instruction for products of bytes, which does not saturate.
struct DotProducts {
    using Left = Sums;
    using Right = Sums;
    static Left left(Sums bytes) { return bytes; }
    static Right right(Sums bytes) { return bytes; }
    static void add(Sums& sum, Left x, Right w) { asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w)); }
};
#endif

// Every second byte of unsigned or signed ones, widened to int16.
struct Halves {
    Sums even;
    Sums odd;
};

// Uses several instructions that cannot overflow: bytes are widened to int16 first, since a pair of products may reach
// 2 * 255 * 128.
struct WidenedProducts {
    using Left = Halves;
    using Right = Halves;
    static Left left(Sums bytes) {
        using Words = Vector<std::uint16_t>;
        const Words words = bit_cast<Words>(bytes);
        return {bit_cast<Sums>(words & 255), bit_cast<Sums>(words >> 8)};
    }
    static Right right(Sums bytes) {
        using Words = Vector<std::int16_t>;
        const Words words = bit_cast<Words>(bytes);
        return {bit_cast<Sums>((words << 8) >> 8), bit_cast<Sums>(words >> 8)};
    }
    static Sums pairs(Sums x, Sums w) {
#if defined(__AVX512F__)
        return bit_cast<Sums>(_mm512_madd_epi16(bit_cast<__m512i>(x), bit_cast<__m512i>(w)));
#elif defined(__AVX2__)
        return bit_cast<Sums>(_mm256_madd_epi16(bit_cast<__m256i>(x), bit_cast<__m256i>(w)));
#else
        const Sums low = ((x << 16) >> 16) * ((w << 16) >> 16);
        return low + (x >> 16) * (w >> 16);
#endif
    }
    static void add(Sums& sum, const Left& x, const Right& w) { sum += pairs(x.even, w.even) + pairs(x.odd, w.odd); }
};

inline Reals as_reals(Sums v) {
    return __builtin_convertvector(v, Reals);
}

// Rounds to the nearest integers, ties to even. NaN, and numbers below the range of int32, become the smallest int32.
inline Sums nearest(Reals v) {
#if defined(__AVX512F__)
    return bit_cast<Sums>(_mm512_cvtps_epi32(bit_cast<__m512>(v)));
#elif defined(__AVX2__)
    return bit_cast<Sums>(_mm256_cvtps_epi32(bit_cast<__m256>(v)));
#elif defined(__SSE2__)
    return bit_cast<Sums>(_mm_cvtps_epi32(bit_cast<__m128>(v)));
#elif defined(__aarch64__)
    const auto rounded = bit_cast<Sums>(vcvtnq_s32_f32(bit_cast<float32x4_t>(v)));  // NaN becomes 0
    return v == v ? rounded : splat(kLeastSum);
#else
    Sums rounded;
    for (std::int64_t i = 0; i < kSums; ++i) {
        rounded[i] = v[i] >= -0x1p31F ? static_cast<std::int32_t>(__builtin_nearbyintf(v[i])) : kLeastSum;
    }
    return rounded;
#endif
}

// Clamps to [low, high]; NaN becomes `low`.
inline Reals bounded(Reals v, float low, float high) {
    return min_of<float>(max_of<float>(splat(low), v), splat(high));
}

// Rounds to the nearest integers, at most `high`. NaN, and numbers below the range of int32, become the smallest int32.
inline Sums nearest_below(Reals v, float high) {
    return nearest(min_of<float>(v, splat(high)));
}

// Stores the low byte of each of the first `count` lanes.
inline void store_bytes(std::uint8_t* to, Sums v, std::int64_t count) {
#if defined(__AVX512F__)
    const __m128i narrow = _mm512_cvtepi32_epi8(bit_cast<__m512i>(v));
    if (count >= kSums) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), narrow);
    } else {
        _mm_mask_storeu_epi8(to, static_cast<__mmask16>((1U << count) - 1U), narrow);
    }
#elif defined(__AVX2__)
    const __m256i order = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1,
                                           -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i chosen = _mm256_shuffle_epi8(bit_cast<__m256i>(v), order);
    const __m128i joined = _mm_unpacklo_epi32(_mm256_castsi256_si128(chosen), _mm256_extracti128_si256(chosen, 1));
    const std::int64_t eight = _mm_cvtsi128_si64(joined);
    if (count >= kSums) {
        std::memcpy(to, &eight, 8);
    } else {
        std::memcpy(to, &eight, static_cast<std::size_t>(count));
    }
#else
    for (std::int64_t i = 0; i < kSums && i < count; ++i) {
        to[i] = static_cast<std::uint8_t>(v[i]);
    }
#endif
}

// Stores one vector from nearest_below as bytes: adds the zero point and clamps.
inline void store_rounded(std::uint8_t* to, Sums v, const ByteResult& bytes, std::int64_t count) {
    const std::int32_t least = (bytes.is_signed ? -128 : 0) - bytes.zero;
    store_bytes(to, (v < least ? splat(least) : v) + bytes.zero, count);
}

#if defined(__AVX512F__)
// Like store_rounded above, for two or four vectors that are contiguous in memory; stores the first `count` bytes.
template <int Vectors>
inline void store_rounded(std::uint8_t* to, const Sums (&v)[Vectors], const ByteResult& bytes, std::int64_t count) {
    const int shift = bytes.is_signed ? 128 : 0;
    const __m512i zero = _mm512_set1_epi16(static_cast<short>(bytes.zero + shift));
    const __m512i flip = _mm512_set1_epi8(static_cast<char>(shift));
    const auto pair = [&](int first) {
        const __m512i words = _mm512_packs_epi32(bit_cast<__m512i>(v[first]), bit_cast<__m512i>(v[first + 1]));
        return _mm512_adds_epi16(words, zero);
    };
    const __m512i low = pair(0);
    const __m512i high = Vectors == 4 ? pair(Vectors - 2) : low;
    const __m512i mixed = _mm512_xor_si512(_mm512_packus_epi16(low, high), flip);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i ordered = _mm512_permutexvar_epi32(order, mixed);
    if constexpr (Vectors == 4) {
        if (count >= 64) {
            _mm512_storeu_si512(to, ordered);
        } else {
            _mm512_mask_storeu_epi8(to, (std::uint64_t{1} << count) - 1, ordered);
        }
    } else if (count >= 32) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(ordered));
    } else {
        _mm256_mask_storeu_epi8(to, static_cast<__mmask32>((std::uint64_t{1} << count) - 1),
                                _mm512_castsi512_si256(ordered));
    }
}
#endif

inline void store_sums(std::int32_t* to, Sums v, std::int64_t count) {
    if (count >= kSums) {
        store(to, v);
    } else {
        store_part(reinterpret_cast<float*>(to), bit_cast<Reals>(v), count);
    }
}

inline void store_reals(float* to, Reals v, std::int64_t count) {
    if (count >= kSums) {
        store(to, v);
    } else {
        store_part(to, v, count);
    }
}

}  // namespace
}  // namespace graphkit
