// Conversions between vectors of bytes and vectors of wider elements. For general conversions, the compiler converts
// element by element. For *.isa.cpp only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "simd/vector.h"

namespace graphkit {
namespace {

// Converts as many bytes as T has lanes to signed integers with the size of T. Byte: std::uint8_t or std::int8_t.
template <typename T, typename Byte>
inline Vector<T> widen_bytes(const Byte* from) {
    static_assert(std::is_integral_v<T> && sizeof(Byte) == 1);
    [[maybe_unused]] constexpr bool kSigned = std::is_signed_v<Byte>;
    typename VectorOf<Byte, kLanes<T>>::type bytes;
    __builtin_memcpy(&bytes, from, sizeof bytes);
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
        const auto v = bit_cast<__m128i>(bytes);
        return bit_cast<Vector<T>>(kSigned ? _mm512_cvtepi8_epi32(v) : _mm512_cvtepu8_epi32(v));
    } else if constexpr (sizeof(T) == 8) {
        const __m128i v = _mm_cvtsi64_si128(bit_cast<long long>(bytes));
        return bit_cast<Vector<T>>(kSigned ? _mm512_cvtepi8_epi64(v) : _mm512_cvtepu8_epi64(v));
    } else if constexpr (sizeof(T) == 2) {
        const auto v = bit_cast<__m256i>(bytes);
        return bit_cast<Vector<T>>(kSigned ? _mm512_cvtepi8_epi16(v) : _mm512_cvtepu8_epi16(v));
    } else {
        return bit_cast<Vector<T>>(bytes);
    }
#elif defined(__AVX2__)
    if constexpr (sizeof(T) == 4) {
        const __m128i v = _mm_cvtsi64_si128(bit_cast<long long>(bytes));
        return bit_cast<Vector<T>>(kSigned ? _mm256_cvtepi8_epi32(v) : _mm256_cvtepu8_epi32(v));
    } else if constexpr (sizeof(T) == 8) {
        const __m128i v = _mm_cvtsi32_si128(bit_cast<int>(bytes));
        return bit_cast<Vector<T>>(kSigned ? _mm256_cvtepi8_epi64(v) : _mm256_cvtepu8_epi64(v));
    } else if constexpr (sizeof(T) == 2) {
        const auto v = bit_cast<__m128i>(bytes);
        return bit_cast<Vector<T>>(kSigned ? _mm256_cvtepi8_epi16(v) : _mm256_cvtepu8_epi16(v));
    } else {
        return bit_cast<Vector<T>>(bytes);
    }
#else
    return __builtin_convertvector(bytes, Vector<T>);
#endif
}

// Returns the low byte of each element of v, a vector of integers.
template <typename T>
inline auto low_bytes(Vector<T> v) {
    using Bytes = typename VectorOf<std::int8_t, kLanes<T>>::type;
#if defined(__AVX2__) && !defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
        const auto low = _mm256_and_si256(bit_cast<__m256i>(v), _mm256_set1_epi32(0xff));
        const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
        return bit_cast<Bytes>(_mm_cvtsi128_si64(_mm_packus_epi16(words, words)));
    } else if constexpr (sizeof(T) == 8) {
        const auto halves = bit_cast<__m256>(v);
        const __m128 even = _mm_shuffle_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1), 0x88);
        const __m128i low = _mm_and_si128(bit_cast<__m128i>(even), _mm_set1_epi32(0xff));
        const __m128i words = _mm_packus_epi32(low, low);
        return bit_cast<Bytes>(_mm_cvtsi128_si32(_mm_packus_epi16(words, words)));
    } else {
        return __builtin_convertvector(v, Bytes);
    }
#else
    return __builtin_convertvector(v, Bytes);
#endif
}

// Loads the first `count` lanes, and reads no memory beyond them; the others contain 0. For elements of 1 or 2 bytes.
template <typename T>
inline Vector<T> load_narrow_part(const T* from, std::int64_t count) {
#if defined(__AVX512BW__)
    if constexpr (sizeof(T) == 1) {
        return bit_cast<Vector<T>>(_mm512_maskz_loadu_epi8((std::uint64_t{1} << count) - 1, from));
    } else {
        return bit_cast<Vector<T>>(_mm512_maskz_loadu_epi16(static_cast<__mmask32>((1ULL << count) - 1), from));
    }
#else
    Vector<T> v{};
    __builtin_memcpy(&v, from, static_cast<std::size_t>(count) * sizeof(T));
    return v;
#endif
}

// Stores the first `count` lanes. For elements of 1 or 2 bytes.
template <typename T>
inline void store_narrow_part(T* to, Vector<T> v, std::int64_t count) {
#if defined(__AVX512BW__)
    if constexpr (sizeof(T) == 1) {
        _mm512_mask_storeu_epi8(to, (std::uint64_t{1} << count) - 1, bit_cast<__m512i>(v));
    } else {
        _mm512_mask_storeu_epi16(to, static_cast<__mmask32>((1ULL << count) - 1), bit_cast<__m512i>(v));
    }
#else
    __builtin_memcpy(to, &v, static_cast<std::size_t>(count) * sizeof(T));
#endif
}

}  // namespace
}  // namespace graphkit
