// exp of vectors, without branches. The error is at most 1 ulp for double and 1.1 ulp for float (1.2 ulp without fused
// multiply-add), also for subnormal and infinite results; NaN stays NaN.
#pragma once

#include "simd/vector.h"

namespace graphkit {
namespace {

template <typename T>
struct ExpConstants;

template <>
struct ExpConstants<float> {
    static constexpr float kLow = -104.0F;  // smaller x give 0, x above kHigh give infinity
    static constexpr float kHigh = 89.0F;
    static constexpr float kRound = 0x1.8p23F;  // after adding it, the low bits are the rounded integer
    static constexpr float kLog2e = 0x1.715476p0F;
    static constexpr float kLn2High = 0x1.62e4p-1F;  // few bits, so that products with n are exact
    static constexpr float kLn2Low = 0x1.7f7d1cp-20F;
    static constexpr int kMantissa = 23;
    static constexpr int kBias = 127;
    // The minimax polynomial of (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2.
    static constexpr float kPolynomial[] = {0x1.6a2252p-10F, 0x1.123b04p-7F, 0x1.5558f8p-5F, 0x1.55549p-3F,
                                            0x1.fffffcp-2F};
};

template <>
struct ExpConstants<double> {
    static constexpr double kLow = -746.0;
    static constexpr double kHigh = 710.0;
    static constexpr double kRound = 0x1.8p52;
    static constexpr double kLog2e = 0x1.71547652b82fep0;
    static constexpr double kLn2High = 0x1.62e42fee00000p-1;
    static constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
    static constexpr int kMantissa = 52;
    static constexpr int kBias = 1023;
    // Taylor's coefficients, 1/13! to 1/2!.
    static constexpr double kPolynomial[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800,
                                             1.0 / 362880,     1.0 / 40320,     1.0 / 5040,     1.0 / 720,
                                             1.0 / 120,        1.0 / 24,        1.0 / 6,        0.5};
};

#if defined(__AVX512F__)

// exp of numbers in [kLow, kHigh] and of NaN: exp(x) = 2^n * exp(r), where n is the multiple of 1/16 nearest to x /
// ln(2). The fraction of n selects a power of 2 from a table, and so few terms of the series of exp(r) suffice.
template <bool Halved>
inline Vector<float> exp_of_sixteenths(Vector<float> x) {
    using C = ExpConstants<float>;
    // 2^(i / 16)
    static constexpr float kPowers[] = {0x1p+0F,        0x1.0b5586p+0F, 0x1.172b84p+0F, 0x1.2387a6p+0F,
                                        0x1.306fep+0F,  0x1.3dea64p+0F, 0x1.4bfdaep+0F, 0x1.5ab07ep+0F,
                                        0x1.6a09e6p+0F, 0x1.7a1148p+0F, 0x1.8ace54p+0F, 0x1.9c4918p+0F,
                                        0x1.ae89fap+0F, 0x1.c199bep+0F, 0x1.d5818ep+0F, 0x1.ea4afap+0F};
    constexpr float kRound = C::kRound / 16;  // after adding it, the low bits are 16 n
    const Vector<float> shifted = x * C::kLog2e + kRound;
    const Vector<float> n = shifted - kRound;
    const Vector<float> r = (x - n * C::kLn2High) - n * C::kLn2Low;
    const Vector<float> p = (r * (1.0F / 6) + 0.5F) * (r * r) + r;
    const auto power =
        bit_cast<Vector<float>>(_mm512_permutexvar_ps(bit_cast<__m512i>(shifted), _mm512_loadu_ps(kPowers)));
    // Multiplies by 2 to the integer below the exponent.
    const Vector<float> exponent = Halved ? n - 1.0F : n;
    return bit_cast<Vector<float>>(_mm512_scalef_ps(bit_cast<__m512>(power * p + power), bit_cast<__m512>(exponent)));
}

#endif

// exp of numbers in [kLow, kHigh] and of NaN: exp(x) = 2^n * exp(r), where n is the integer nearest to x / ln(2).
// `Halved`: exp(x) / 2, which may be finite where exp(x) is not.
template <typename T, bool Halved = false>
inline Vector<T> exp_inside(Vector<T> x) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
        return exp_of_sixteenths<Halved>(x);
    }
#endif
    using C = ExpConstants<T>;
    const Vector<T> shifted = x * C::kLog2e + C::kRound;
    const Vector<T> n = shifted - C::kRound;
    const Vector<T> r = (x - n * C::kLn2High) - n * C::kLn2Low;
    Vector<T> p = splat(C::kPolynomial[0]);
    constexpr int kTerms = sizeof(C::kPolynomial) / sizeof(T);
#pragma GCC unroll 16
    for (int i = 1; i < kTerms; ++i) {
        p = p * r + C::kPolynomial[i];
    }
    p = (p * r + T{1}) * r + T{1};
#if defined(__AVX512F__)
    const Vector<T> exponent = Halved ? n - T{1} : n;
    return bit_cast<Vector<T>>(_mm512_scalef_pd(bit_cast<__m512d>(p), bit_cast<__m512d>(exponent)));
#else
    using Bits = typename BitsOf<T>::type;
    // 2^n as a product of two factors: by itself it may be subnormal or too large.
    const Vector<Bits> integer = bit_cast<Vector<Bits>>(shifted) - (bit_cast<Bits>(C::kRound) + Bits{Halved});
    const Vector<Bits> half = integer >> 1;
    const auto power = [](Vector<Bits> k) { return bit_cast<Vector<T>>((k + C::kBias) << C::kMantissa); };
    return p * power(half) * power(integer - half);
#endif
}

// exp of x <= kHigh. Numbers below kLow, such as scores of positions that a mask hides, give 0 without being computed:
// an underflow takes processors more than a hundred cycles.
template <typename T>
inline Vector<T> exp_of_negative(Vector<T> x) {
    const auto hidden = x < ExpConstants<T>::kLow;
    return hidden ? Vector<T>{} : exp_inside<T>(hidden ? Vector<T>{} : x);
}

template <typename T>
inline Vector<T> exp(Vector<T> x) {
    return exp_of_negative<T>(at_most<T>(x, ExpConstants<T>::kHigh));
}

}  // namespace
}  // namespace graphkit
