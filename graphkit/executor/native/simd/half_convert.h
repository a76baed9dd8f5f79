// Conversions between float16 or bfloat16 and float; they round to nearest, ties to even. For *.isa.cpp only.
#pragma once

#include "simd/half.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

inline float to_float(Float16 half) {
    const std::uint32_t sign = (half.bits & 0x8000U) << 16;
    const std::uint32_t magnitude = half.bits & 0x7fffU;
    if (magnitude >= 0x7c00U) {  // infinity and NaN
        return bit_cast<float>(sign | 0x7f800000U | ((magnitude & 0x3ffU) << 13));
    }
    // Shift the bits as if both types had the same exponent bias, then correct by a factor of 2^112, which is exact for
    // subnormal numbers, too.
    return bit_cast<float>(sign | bit_cast<std::uint32_t>(bit_cast<float>(magnitude << 13) * 0x1p112F));
}

inline Float16 to_float16(float value) {
    const auto bits = bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
    const std::uint32_t magnitude = bits & 0x7fffffffU;
    const auto make = [&](std::uint32_t rest) { return Float16{static_cast<std::uint16_t>(sign | rest)}; };
    if (magnitude > 0x7f800000U) {
        return make(0x7e00U | ((magnitude >> 13) & 0x3ffU));
    }
    if (magnitude >= 0x477ff000U) {  // 65520 and above
        return make(0x7c00U);
    }
    if (magnitude < 0x38800000U) {  // subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
        const float shifted = bit_cast<float>(magnitude) + 0.5F;
        return make(bit_cast<std::uint32_t>(shifted) - bit_cast<std::uint32_t>(0.5F));
    }
    const std::uint32_t odd = (magnitude >> 13) & 1U;
    return make((magnitude - 0x38000000U + 0xfffU + odd) >> 13);
}

inline float to_float(BFloat16 half) {
    return bit_cast<float>(std::uint32_t{half.bits} << 16);
}

inline BFloat16 to_bfloat16(float value) {
    const auto bits = bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    return {static_cast<std::uint16_t>(value != value ? (bits >> 16) | 0x40U : rounded)};
}

inline void widen(const Float16* from, float* to, std::int64_t size) {
    std::int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= size; i += 16) {
        _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))));
    }
#elif defined(__F16C__)
    for (; i + 8 <= size; i += 8) {
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
    }
#endif
    for (; i < size; ++i) {
        to[i] = to_float(from[i]);
    }
}

inline void widen(const BFloat16* from, float* to, std::int64_t size) {
    for (std::int64_t i = 0; i < size; ++i) {
        to[i] = to_float(from[i]);
    }
}

inline void narrow(const float* from, Float16* to, std::int64_t size) {
    std::int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= size; i += 16) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i),
                            _mm512_cvtps_ph(_mm512_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    }
#elif defined(__F16C__)
    for (; i + 8 <= size; i += 8) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    }
#endif
    for (; i < size; ++i) {
        to[i] = to_float16(from[i]);
    }
}

inline void narrow(const float* from, BFloat16* to, std::int64_t size) {
    for (std::int64_t i = 0; i < size; ++i) {
        to[i] = to_bfloat16(from[i]);
    }
}

}  // namespace
}  // namespace graphkit
