// Vectors of the instruction set that a translation unit is compiled for. For *.isa.cpp only: everything here has
// internal linkage, so that the linker never replaces the code of one instruction set by that of another.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace graphkit {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <typename T, int Bytes>
struct VectorOf {
    typedef T type __attribute__((vector_size(Bytes)));
};

template <typename T>
using Vector = typename VectorOf<T, kVectorBytes>::type;

template <typename T>
constexpr std::int64_t kLanes = kVectorBytes / static_cast<std::int64_t>(sizeof(T));

// The signed integer with the size of T.
template <typename T>
struct BitsOf;
template <>
struct BitsOf<float> {
    using type = std::int32_t;
};
template <>
struct BitsOf<double> {
    using type = std::int64_t;
};

template <typename To, typename From>
inline To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

template <typename T>
inline Vector<T> splat(T value) {
    return value - Vector<T>{};
}

template <typename T>
inline Vector<T> load(const T* from) {
    Vector<T> v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}

// Returns a vector that was loaded from memory, and keeps it in a register. GCC may otherwise load it again for each of
// up to three products, which then wait for loads.
template <typename V>
inline V in_register(V v) {
#if defined(__AVX__)
    asm("" : "+v"(v));
#endif
    return v;
}

template <typename T>
inline void store(T* to, Vector<T> v) {
    __builtin_memcpy(to, &v, sizeof v);
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// A mask: all bits of the first `count` lanes, of Bytes bytes each, are set.
template <int Bytes>
inline __m256i first_lanes(std::int64_t count) {
    if constexpr (Bytes == 4) {
        const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes);
    } else {
        return _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), _mm256_setr_epi64x(0, 1, 2, 3));
    }
}
#endif

// Loads the first `count` lanes, and reads no memory beyond them; the others contain `fill`.
template <typename T>
inline Vector<T> load_part(const T* from, std::int64_t count, T fill) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
        const auto mask = static_cast<__mmask16>((1U << count) - 1U);
        return bit_cast<Vector<T>>(_mm512_mask_loadu_ps(bit_cast<__m512>(splat(fill)), mask, from));
    } else {
        const auto mask = static_cast<__mmask8>((1U << count) - 1U);
        return bit_cast<Vector<T>>(_mm512_mask_loadu_pd(bit_cast<__m512d>(splat(fill)), mask, from));
    }
#elif defined(__AVX2__)
    const __m256i mask = first_lanes<sizeof(T)>(count);
    if constexpr (sizeof(T) == 4) {
        const __m256 read = _mm256_maskload_ps(reinterpret_cast<const float*>(from), mask);
        return bit_cast<Vector<T>>(_mm256_blendv_ps(bit_cast<__m256>(splat(fill)), read, bit_cast<__m256>(mask)));
    } else {
        const __m256d read = _mm256_maskload_pd(reinterpret_cast<const double*>(from), mask);
        return bit_cast<Vector<T>>(_mm256_blendv_pd(bit_cast<__m256d>(splat(fill)), read, bit_cast<__m256d>(mask)));
    }
#else
    Vector<T> v = splat(fill);
    for (std::int64_t i = 0; i < kLanes<T>; ++i) {
        if (i < count) {
            v[i] = from[i];
        }
    }
    return v;
#endif
}

// Stores the first `count` lanes.
template <typename T>
inline void store_part(T* to, Vector<T> v, std::int64_t count) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
        _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1U << count) - 1U), bit_cast<__m512>(v));
    } else {
        _mm512_mask_storeu_pd(to, static_cast<__mmask8>((1U << count) - 1U), bit_cast<__m512d>(v));
    }
#elif defined(__AVX2__)
    const __m256i mask = first_lanes<sizeof(T)>(count);
    if constexpr (sizeof(T) == 4) {
        _mm256_maskstore_ps(reinterpret_cast<float*>(to), mask, bit_cast<__m256>(v));
    } else {
        _mm256_maskstore_pd(reinterpret_cast<double*>(to), mask, bit_cast<__m256d>(v));
    }
#else
    for (std::int64_t i = 0; i < kLanes<T>; ++i) {
        if (i < count) {
            to[i] = v[i];
        }
    }
#endif
}

// a < b ? b : a and a > b ? b : a, element by element: `a` if either is NaN.
template <typename T>
inline Vector<T> max_of(Vector<T> a, Vector<T> b) {
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<T, float>) {
        return bit_cast<Vector<T>>(_mm512_max_ps(bit_cast<__m512>(b), bit_cast<__m512>(a)));
    } else {
        return bit_cast<Vector<T>>(_mm512_max_pd(bit_cast<__m512d>(b), bit_cast<__m512d>(a)));
    }
#elif defined(__AVX2__)
    if constexpr (std::is_same_v<T, float>) {
        return bit_cast<Vector<T>>(_mm256_max_ps(bit_cast<__m256>(b), bit_cast<__m256>(a)));
    } else {
        return bit_cast<Vector<T>>(_mm256_max_pd(bit_cast<__m256d>(b), bit_cast<__m256d>(a)));
    }
#else
    return a < b ? b : a;
#endif
}

template <typename T>
inline Vector<T> min_of(Vector<T> a, Vector<T> b) {
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<T, float>) {
        return bit_cast<Vector<T>>(_mm512_min_ps(bit_cast<__m512>(b), bit_cast<__m512>(a)));
    } else {
        return bit_cast<Vector<T>>(_mm512_min_pd(bit_cast<__m512d>(b), bit_cast<__m512d>(a)));
    }
#elif defined(__AVX2__)
    if constexpr (std::is_same_v<T, float>) {
        return bit_cast<Vector<T>>(_mm256_min_ps(bit_cast<__m256>(b), bit_cast<__m256>(a)));
    } else {
        return bit_cast<Vector<T>>(_mm256_min_pd(bit_cast<__m256d>(b), bit_cast<__m256d>(a)));
    }
#else
    return a > b ? b : a;
#endif
}

// The larger of a and b; NaN if either is NaN.
inline Vector<float> largest_of(Vector<float> a, Vector<float> b) {
#if defined(__AVX512F__)
    const auto x = bit_cast<__m512>(a);
    const auto y = bit_cast<__m512>(b);
    return bit_cast<Vector<float>>(_mm512_mask_max_ps(y, _mm512_cmp_ps_mask(y, y, _CMP_ORD_Q), y, x));
#else
    return b != b ? b : max_of<float>(a, b);
#endif
}

// The larger of x and `low`, for floats; NaN stays NaN.
template <typename T>
inline Vector<T> at_least(Vector<T> x, T low) {
    return max_of<T>(x, splat(low));
}

// The smaller of x and `high`, for floats; NaN stays NaN.
template <typename T>
inline Vector<T> at_most(Vector<T> x, T high) {
    return min_of<T>(x, splat(high));
}

struct Add {
    template <typename V>
    static V combine(V a, V b) {
        return a + b;
    }
};

struct Multiply {
    template <typename V>
    static V combine(V a, V b) {
        return a * b;
    }
};

// The result is NaN if either operand is.
struct Largest {
    template <typename V>
    static V combine(V a, V b) {
        const V larger = b > a ? b : a;
        return b != b ? b : larger;
    }
};

struct Smallest {
    template <typename V>
    static V combine(V a, V b) {
        const V smaller = b < a ? b : a;
        return b != b ? b : smaller;
    }
};

// NaN is ignored as an operand `b`: `a` is returned.
template <typename T>
struct LargestNumber {
    template <typename V>
    static V combine(V a, V b) {
        if constexpr (sizeof(V) == kVectorBytes) {
            return max_of<T>(a, b);
        } else {
            return a < b ? b : a;
        }
    }
};

// Combines all lanes, as a balanced tree.
template <typename Op, typename T, int Bytes = kVectorBytes>
inline T across(typename VectorOf<T, Bytes>::type v) {
    if constexpr (Bytes == sizeof(T)) {
        return v[0];
    } else if constexpr (Bytes == 2 * sizeof(T)) {
        return Op::combine(v[0], v[1]);
    } else {
        using Half = typename VectorOf<T, Bytes / 2>::type;
        Half parts[2];
        __builtin_memcpy(parts, &v, sizeof v);
        return across<Op, T, Bytes / 2>(Op::combine(parts[0], parts[1]));
    }
}

}  // namespace
}  // namespace graphkit
