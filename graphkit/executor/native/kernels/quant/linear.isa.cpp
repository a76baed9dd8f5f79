// Conversions between numbers and quantised integers. Compiled without contraction: products are rounded before they
// are added, as the operators are defined.
#include <limits>
#include <type_traits>

#include "kernels/quant/byte_lanes.h"
#include "kernels/quant/linear_table.h"

namespace graphkit {
namespace {

template <typename T>
constexpr float kLeast = static_cast<float>(std::numeric_limits<T>::lowest());
template <typename T>
constexpr float kMost = static_cast<float>(std::numeric_limits<T>::max());

template <typename T>
using Narrow = typename VectorOf<T, static_cast<int>(kSums * sizeof(T))>::type;

// Widens vectors of narrower integers. For this, the compiler's conversion works element by element.
template <typename T>
inline Sums widened(Narrow<T> v) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 1) {
        const auto raw = bit_cast<__m128i>(v);
        return bit_cast<Sums>(std::is_signed_v<T> ? _mm512_cvtepi8_epi32(raw) : _mm512_cvtepu8_epi32(raw));
    } else if constexpr (sizeof(T) == 2) {
        const auto raw = bit_cast<__m256i>(v);
        return bit_cast<Sums>(std::is_signed_v<T> ? _mm512_cvtepi16_epi32(raw) : _mm512_cvtepu16_epi32(raw));
    }
#elif defined(__AVX2__)
    if constexpr (sizeof(T) == 1) {
        const __m128i raw = _mm_cvtsi64_si128(bit_cast<std::int64_t>(v));
        return bit_cast<Sums>(std::is_signed_v<T> ? _mm256_cvtepi8_epi32(raw) : _mm256_cvtepu8_epi32(raw));
    } else if constexpr (sizeof(T) == 2) {
        const auto raw = bit_cast<__m128i>(v);
        return bit_cast<Sums>(std::is_signed_v<T> ? _mm256_cvtepi16_epi32(raw) : _mm256_cvtepu16_epi32(raw));
    }
#endif
    return __builtin_convertvector(v, Sums);
}

template <typename T>
inline Sums widen(const T* from, std::int64_t count) {
    Narrow<T> v = {};
    if (count >= kSums) {
        std::memcpy(&v, from, sizeof v);
    } else {
        std::memcpy(&v, from, static_cast<std::size_t>(count) * sizeof(T));
    }
    return widened<T>(v);
}

template <typename T>
inline void narrow(T* to, Sums v, std::int64_t count) {
    if constexpr (sizeof(T) == 1) {
        store_bytes(reinterpret_cast<std::uint8_t*>(to), v, count);
    } else {
        const auto stored = __builtin_convertvector(v, Narrow<T>);
        std::memcpy(to, &stored, count >= kSums ? sizeof stored : static_cast<std::size_t>(count) * sizeof(T));
    }
}

inline Reals some(const float* from, std::int64_t count) {
    return count >= kSums ? load(from) : load_part(from, count, 1.0F);
}

inline Sums some(const std::int32_t* from, std::int64_t count) {
    return widen(from, count);
}

// Calls body(first element, number of elements) for vectors.
template <typename Body>
inline void over(std::int64_t count, Body&& body) {
    std::int64_t i = 0;
    for (; i + kSums <= count; i += kSums) {
        body(i, kSums);
    }
    if (i < count) {
        body(i, count - i);
    }
}

template <typename T>
void quantise(const float* x, std::int64_t count, const LinearRow& row, void* y) {
    auto* to = static_cast<T*>(y);
    const Reals one_scale = splat(row.scales[0]);
    const Reals one_zero = as_reals(splat(row.zeros[0]));
    over(count, [&](std::int64_t i, std::int64_t n) {
        const Reals scale = row.each ? some(row.scales + i, n) : one_scale;
        const Reals zero = row.each ? as_reals(some(row.zeros + i, n)) : one_zero;
        const Reals quotient = some(x + i, n) / scale;
        const Reals inside = min_of<float>(max_of<float>(splat(kLeast<T>) - zero, quotient), splat(kMost<T>) - zero);
        narrow(to + i, nearest(inside) + nearest(zero), n);
    });
}

template <typename T>
void dequantise(const void* x, std::int64_t count, const LinearRow& row, float* y) {
    const auto* from = static_cast<const T*>(x);
    over(count, [&](std::int64_t i, std::int64_t n) {
        const Reals scale = row.each ? some(row.scales + i, n) : splat(row.scales[0]);
        const Sums zero = row.each ? some(row.zeros + i, n) : splat(row.zeros[0]);
        store_reals(y + i, as_reals(widen(from + i, n) - zero) * scale, n);
    });
}

void range(const float* x, std::int64_t count, float& low, float& high) {
    constexpr int kSide = 4;
    Reals least[kSide], most[kSide];
    for (int s = 0; s < kSide; ++s) {
        least[s] = splat(low);
        most[s] = splat(high);
    }
    std::int64_t i = 0;
    for (; i + kSide * kSums <= count; i += kSide * kSums) {
        for (int s = 0; s < kSide; ++s) {
            const Reals v = load(x + i + s * kSums);
            least[s] = min_of<float>(least[s], v);
            most[s] = max_of<float>(most[s], v);
        }
    }
    over(count - i, [&](std::int64_t at, std::int64_t n) {
        const Reals v = n >= kSums ? load(x + i + at) : load_part(x + i + at, n, low);
        least[0] = min_of<float>(least[0], v);
        most[0] = max_of<float>(most[0], n >= kSums ? v : load_part(x + i + at, n, high));
    });
    for (int s = 0; s < kSide; ++s) {
        for (std::int64_t lane = 0; lane < kSums; ++lane) {
            low = least[s][lane] < low ? least[s][lane] : low;
            high = most[s][lane] > high ? most[s][lane] : high;
        }
    }
}

// Loads bytes as int32. flip: 0x80 if the bytes are signed: v ^ 0x80 is then v + 128.
inline Sums bytes_at(const std::uint8_t* from, std::int64_t count, std::uint8_t flip) {
    const Sums v = widen(from, count);
    return flip != 0 ? ((v ^ 0x80) - 128) : v;
}

template <typename Combine>
inline void binary(const std::uint8_t* a, const std::uint8_t* b, std::int64_t count, const BinaryRow& row,
                   std::uint8_t* y, Combine combine) {
    const Sums one_a = bytes_at(a, count > 0, row.flip);
    const Sums one_b = bytes_at(b, count > 0, row.flip);
    const ByteResult bytes{row.flip != 0 ? 127.0F : 255.0F, 0, row.flip != 0};
    const auto whole = [&](std::int64_t i, std::int64_t n) {
        const Sums left = row.a_single ? splat(one_a[0]) : bytes_at(a + i, n, row.flip);
        const Sums right = row.b_single ? splat(one_b[0]) : bytes_at(b + i, n, row.flip);
        return nearest_below(combine(left, right), bytes.high);
    };
    std::int64_t done = 0;
#if defined(__AVX512F__)
    for (; done + 4 * kSums <= count; done += 4 * kSums) {
        Sums four[4];
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) {
            four[v] = whole(done + v * kSums, kSums);
        }
        store_rounded<4>(y + done, four, bytes, 4 * kSums);
    }
#endif
    over(count - done,
         [&](std::int64_t i, std::int64_t n) { store_rounded(y + done + i, whole(done + i, n), bytes, n); });
}

// a * b + c, rounded once.
inline Reals fused(Reals a, Reals b, Reals c) {
#if defined(__AVX512F__)
    return bit_cast<Reals>(_mm512_fmadd_ps(bit_cast<__m512>(a), bit_cast<__m512>(b), bit_cast<__m512>(c)));
#elif defined(__FMA__)
    return bit_cast<Reals>(_mm256_fmadd_ps(bit_cast<__m256>(a), bit_cast<__m256>(b), bit_cast<__m256>(c)));
#elif defined(__aarch64__)
    return bit_cast<Reals>(vfmaq_f32(bit_cast<float32x4_t>(c), bit_cast<float32x4_t>(a), bit_cast<float32x4_t>(b)));
#else
    // The product is exact in float64.
    using Wide = typename VectorOf<double, 2 * kVectorBytes>::type;
    const Wide sum =
        __builtin_convertvector(a, Wide) * __builtin_convertvector(b, Wide) + __builtin_convertvector(c, Wide);
    return __builtin_convertvector(sum, Reals);
#endif
}

void add(const std::uint8_t* a, const std::uint8_t* b, std::int64_t count, const BinaryRow& row, std::uint8_t* y) {
    const Reals fixed = splat(row.fixed), of_a = splat(row.a_factor), of_b = splat(row.b_factor);
    binary(a, b, count, row, y,
           [&](Sums left, Sums right) { return fused(as_reals(left), of_a, fused(as_reals(right), of_b, fixed)); });
}

void multiply(const std::uint8_t* a, const std::uint8_t* b, std::int64_t count, const BinaryRow& row, std::uint8_t* y) {
    const Sums zero_a = splat(row.a_zero), zero_b = splat(row.b_zero);
    const Reals factor = splat(row.a_factor), fixed = splat(row.fixed);
    binary(a, b, count, row, y,
           [&](Sums left, Sums right) { return as_reals((left - zero_a) * (right - zero_b)) * factor + fixed; });
}

void add_bytes(const std::uint8_t* x, std::int64_t count, std::uint8_t flip, std::int32_t* sums) {
    over(count, [&](std::int64_t i, std::int64_t n) {
        store_sums(sums + i, some(sums + i, n) + bytes_at(x + i, n, flip), n);
    });
}

void requantise(const std::int32_t* sums, std::int64_t count, float factor, float low, float high, std::int32_t zero,
                std::uint8_t* y) {
    over(count, [&](std::int64_t i, std::int64_t n) {
        const Reals product = as_reals(some(sums + i, n)) * splat(factor);
        store_bytes(y + i, nearest(bounded(product, low, high)) + splat(zero), n);
    });
}

void maximum(const std::uint8_t* const* rows, std::int64_t taps, std::int64_t count, std::uint8_t flip,
             std::uint8_t* y) {
    using Bytes = Vector<std::uint8_t>;
    constexpr std::int64_t kBytes = kVectorBytes;
    std::int64_t i = 0;
    for (; i + kBytes <= count; i += kBytes) {
        Bytes most = {};
        for (std::int64_t t = 0; t < taps; ++t) {
            Bytes v;
            std::memcpy(&v, rows[t] + i, sizeof v);
            v ^= flip;
            most = v > most ? v : most;
        }
        most ^= flip;
        std::memcpy(y + i, &most, sizeof most);
    }
    for (; i < count; ++i) {
        std::uint8_t most = 0;
        for (std::int64_t t = 0; t < taps; ++t) {
            const auto v = static_cast<std::uint8_t>(rows[t][i] ^ flip);
            most = v > most ? v : most;
        }
        y[i] = static_cast<std::uint8_t>(most ^ flip);
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(LinearFunctions, linear_functions) = {
    {quantise<std::uint8_t>, quantise<std::int8_t>, quantise<std::uint16_t>, quantise<std::int16_t>, nullptr},
    {dequantise<std::uint8_t>, dequantise<std::int8_t>, dequantise<std::uint16_t>, dequantise<std::int16_t>,
     dequantise<std::int32_t>},
    range,
    add,
    multiply,
    add_bytes,
    requantise,
    maximum,
};

}  // namespace graphkit
