// Vectors of int32 sums: products of bytes into them, and the bytes or numbers that come out of them. For *.isa.cpp only.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd/vector.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace graphkit {
namespace {

using Sums = Vector<std::int32_t>;
using Reals = Vector<float>;
constexpr std::int64_t kSums = kLanes<std::int32_t>;

// Four bytes, in every lane.
inline Sums four_bytes(const std::uint8_t* from) {
    std::int32_t value;
    std::memcpy(&value, from, sizeof value);
    return splat(value);
}

#if defined(__AVX512F__)
// The processor's instruction, which does not saturate.
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

// In steps that cannot overflow: of bytes widened to int16, as pairs of such products may be 2 * 255 * 128.
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

// The nearest integers, even ones of two that are as near, of numbers that int32 has.
inline Sums nearest(Reals v) {
#if defined(__AVX512F__)
    return bit_cast<Sums>(_mm512_cvtps_epi32(bit_cast<__m512>(v)));
#elif defined(__AVX2__)
    return bit_cast<Sums>(_mm256_cvtps_epi32(bit_cast<__m256>(v)));
#elif defined(__SSE2__)
    return bit_cast<Sums>(_mm_cvtps_epi32(bit_cast<__m128>(v)));
#else
    Sums rounded;
    for (std::int64_t i = 0; i < kSums; ++i) {
        rounded[i] = static_cast<std::int32_t>(__builtin_nearbyintf(v[i]));
    }
    return rounded;
#endif
}

// Between bounds; `low` for NaN.
inline Reals bounded(Reals v, float low, float high) {
    return min_of<float>(max_of<float>(splat(low), v), splat(high));
}

// The low byte of the first `count` lanes.
inline void store_bytes(std::uint8_t* to, Sums v, std::int64_t count) {
#if defined(__AVX512F__)
    _mm512_mask_cvtepi32_storeu_epi8(to, static_cast<__mmask16>((1U << count) - 1U), bit_cast<__m512i>(v));
#elif defined(__AVX2__)
    const __m256i order = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1,
                                           -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i chosen = _mm256_shuffle_epi8(bit_cast<__m256i>(v), order);
    const __m128i joined =
        _mm_unpacklo_epi32(_mm256_castsi256_si128(chosen), _mm256_extracti128_si256(chosen, 1));
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

inline void store_sums(std::int32_t* to, Sums v, std::int64_t count) {
    if (count >= kSums) {
        store(to, v);
    } else {
        std::memcpy(to, &v, static_cast<std::size_t>(count) * sizeof(std::int32_t));
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
