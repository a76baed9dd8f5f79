// Quotients, remainders and powers of vectors of integers. For *.isa.cpp only.
//
// Quotients are computed in floating point. If a quotient a / b is not an integer, it differs from every integer by at
// least 1 / |b|. Rounding changes it by less, if a has at most 16 bits in float, or at most 53 bits in double. So the
// rounded quotient has the same integer part.
#pragma once

#include "kernels/pointwise/lane_casts.h"
#include "kernels/pointwise/pointwise_functions.h"
#include "simd/bitwise.h"
#include "simd/bytes.h"

namespace graphkit {
namespace {

template <typename T>
using Quotient = std::conditional_t<sizeof(T) <= 2, float, double>;

// Whether vectors of T are converted to Quotient<T> and back by instructions.
template <typename T>
constexpr bool kDividesInVectors =
#if defined(__AVX512DQ__)
    true;
#else
    sizeof(T) <= 2 || std::is_same_v<T, std::int32_t>;
#endif

// As many elements of T as a vector of quotients has.
template <typename T>
using Dividends = Lanes<T, kLanes<Quotient<T>>>;

template <typename T>
inline Vector<Quotient<T>> load_numbers(const T* from) {
    if constexpr (sizeof(T) == 1) {
        return __builtin_convertvector(widen_bytes<std::int32_t>(from), Vector<float>);
    } else {
        return converted_lanes<T, Quotient<T>, kLanes<Quotient<T>>>(load_lanes<Dividends<T>>(from));
    }
}

// Stores the integer parts of x. One that does not fit wraps around.
template <typename T>
inline void store_integers(T* to, Vector<Quotient<T>> x) {
    Dividends<T> v;
    if constexpr (sizeof(T) <= 2) {
        const auto wide = __builtin_convertvector(x, Vector<std::int32_t>);
        if constexpr (sizeof(T) == 1) {
            v = bit_cast<Dividends<T>>(low_bytes<std::int32_t>(wide));
        } else {
            v = __builtin_convertvector(wide, Dividends<T>);
        }
    } else {
        v = __builtin_convertvector(x, Dividends<T>);
    }
    store_lanes(to, v);
}

#if defined(__AVX512DQ__)
// Whether a quotient of these operands has the right integer part.
inline bool divides_exactly(Vector<double> a, Vector<double> b) {
    const Vector<double> larger = max_of<double>(magnitude<double>(a), magnitude<double>(b));
    return _mm512_cmp_pd_mask(bit_cast<__m512d>(larger), _mm512_set1_pd(0x1p53), _CMP_GE_OQ) == 0;
}
#endif

inline Vector<float> integer_part(Vector<float> x) {
    return __builtin_convertvector(__builtin_convertvector(x, Vector<std::int32_t>), Vector<float>);
}

inline Vector<double> integer_part(Vector<double> x) {
    return round_towards_zero(x);
}

struct Quotients {
    using Element = functions::TruncatedQuotient;
    template <typename T>
    static Vector<T> apply(Vector<T> a, Vector<T> b) {
        return a / b;
    }
};

struct Remainders {
    using Element = functions::TruncatedRemainder;
    template <typename T>
    static Vector<T> apply(Vector<T> a, Vector<T> b) {
        const Vector<T> size = magnitude<T>(a);
        const Vector<T> divisor = magnitude<T>(b);
        return with_sign<T>(size - integer_part(size / divisor) * divisor, a);
    }
};

struct FlooredRemainders {
    using Element = functions::FlooredRemainder;
    template <typename T>
    static Vector<T> apply(Vector<T> a, Vector<T> b) {
        const Vector<T> rest = Remainders::apply<T>(a, b);
        return (rest != T{0}) & ((rest < T{0}) != (b < T{0})) ? rest + b : rest;
    }
};

// y[i] = F(a[i], b[i]), and 0 where b[i] is 0. Elements from `count` on are not computed: they may be divided by zero.
template <typename F, typename T>
void divide_integers(std::byte* y, const BlockOperand* x, std::int64_t count) {
    using Bits = typename BitsOf<Quotient<T>>::type;
    constexpr std::int64_t kStep = kLanes<Quotient<T>>;
    const T* const a = reinterpret_cast<const T*>(x[0].data);
    const T* const b = reinterpret_cast<const T*>(x[1].data);
    T* const out = reinterpret_cast<T*>(y);
    const auto each = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            out[i] = F::Element::apply(a[i & x[0].mask], b[i & x[1].mask]);
        }
    };
    std::int64_t i = 0;
    if constexpr (kDividesInVectors<T>) {
        Vector<Bits> zeros{};
        for (; i + kStep <= count; i += kStep) {
            const auto dividend = load_numbers<T>(a + (i & x[0].mask));
            const auto divisor = load_numbers<T>(b + (i & x[1].mask));
            if constexpr (sizeof(T) == 8) {
                if (!divides_exactly(dividend, divisor)) {
                    each(i, i + kStep);
                    continue;
                }
            }
            const Vector<Bits> zero = divisor == 0;
            zeros |= zero;
            const auto result = F::template apply<Quotient<T>>(dividend, divisor);
            store_integers<T>(out + i, zero ? Vector<Quotient<T>>{} : result);
        }
        divided_by_zero = divided_by_zero || any_bit<Bits>(zeros);
    }
    each(i, count);
}

// Powers by repeated squaring. See functions::IntegerPower.
template <typename T>
void integer_powers(std::byte* y, const BlockOperand* x, std::int64_t count) {
    using U = std::make_unsigned_t<T>;
    const T* const a = reinterpret_cast<const T*>(x[0].data);
    const T* const b = reinterpret_cast<const T*>(x[1].data);
    T* const out = reinterpret_cast<T*>(y);
    std::int64_t i = 0;
    for (; i + kLanes<T> <= count; i += kLanes<T>) {
        const Vector<T> bases = load(a + (i & x[0].mask));
        const Vector<T> exponents = load(b + (i & x[1].mask));
        auto rest = bit_cast<Vector<U>>(exponents);
        auto bits = static_cast<std::uint64_t>(across<BitwiseOr, U>(rest));
        if (std::is_signed_v<T> && (bits >> (8 * sizeof(T) - 1)) != 0) {  // negative exponents
            for (std::int64_t lane = i; lane < i + kLanes<T>; ++lane) {
                out[lane] = functions::IntegerPower::apply(a[lane & x[0].mask], b[lane & x[1].mask]);
            }
            continue;
        }
        auto squares = bit_cast<Vector<U>>(bases);
        Vector<U> result = splat(U{1});
        while (bits != 0) {
            result = (rest & U{1}) != U{0} ? result * squares : result;
            bits >>= 1;
            rest >>= 1;
            squares = bits != 0 ? squares * squares : squares;
        }
        store(out + i, bit_cast<Vector<T>>(result));
    }
    for (; i < count; ++i) {
        out[i] = functions::IntegerPower::apply(a[i & x[0].mask], b[i & x[1].mask]);
    }
}

}  // namespace
}  // namespace graphkit
