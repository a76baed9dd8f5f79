// Elementary functions of vectors, without data-dependent branches unless noted.
//
// Errors are measured against float64 (for float) and against 80-bit or multiprecision results (for double).
// Infinities, NaN, signed zeros and subnormal numbers follow IEEE 754. The error bound of each function holds for all
// operands unless a range is given; tests/executor/devices/cpu/test_pointwise_math.py checks the bounds.
#pragma once

#include <cmath>
#include <type_traits>

#include "simd/exp.h"
#include "simd/piecewise.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

template <typename T>
using BitsVector = Vector<typename BitsOf<T>::type>;

template <typename T>
constexpr typename BitsOf<T>::type kSignBit = std::numeric_limits<typename BitsOf<T>::type>::min();

template <typename T>
inline Vector<T> magnitude(Vector<T> x) {
    return bit_cast<Vector<T>>(bit_cast<BitsVector<T>>(x) & ~kSignBit<T>);
}

// |x| with the sign of `sign`.
template <typename T>
inline Vector<T> with_sign(Vector<T> x, Vector<T> sign) {
    return bit_cast<Vector<T>>((bit_cast<BitsVector<T>>(x) & ~kSignBit<T>) |
                               (bit_cast<BitsVector<T>>(sign) & kSignBit<T>));
}

// Applies a function lane by lane, where the C library's version is good enough.
template <typename T, typename Function>
inline Vector<T> each_lane(Vector<T> x, Function function) {
    for (int i = 0; i < static_cast<int>(kLanes<T>); ++i) {
        x[i] = function(x[i]);
    }
    return x;
}

template <typename T, int Terms>
inline Vector<T> polynomial(Vector<T> x, const T (&coefficients)[Terms]) {
    Vector<T> p = splat(coefficients[0]);
#pragma GCC unroll 16
    for (int i = 1; i < Terms; ++i) {
        p = p * x + coefficients[i];
    }
    return p;
}

inline Vector<float> square_root(Vector<float> x) {
#if defined(__AVX512F__)
    return bit_cast<Vector<float>>(_mm512_sqrt_ps(bit_cast<__m512>(x)));
#elif defined(__AVX2__)
    return bit_cast<Vector<float>>(_mm256_sqrt_ps(bit_cast<__m256>(x)));
#else
    return each_lane<float>(x, [](float v) { return __builtin_sqrtf(v); });
#endif
}

inline Vector<double> square_root(Vector<double> x) {
#if defined(__AVX512F__)
    return bit_cast<Vector<double>>(_mm512_sqrt_pd(bit_cast<__m512d>(x)));
#elif defined(__AVX2__)
    return bit_cast<Vector<double>>(_mm256_sqrt_pd(bit_cast<__m256d>(x)));
#else
    return each_lane<double>(x, [](double v) { return __builtin_sqrt(v); });
#endif
}

// Rounds to the nearest integer, ties to even. If |x| < 2^(mantissa bits), adding and subtracting 2^(mantissa bits)
// rounds; larger numbers are integers. The sign of zero is kept.
template <typename T>
inline Vector<T> round_even(Vector<T> x) {
    constexpr T kShift = ExpConstants<T>::kRound / T(1.5);
    const Vector<T> shifted = magnitude<T>(x) + kShift;
    return magnitude<T>(x) < kShift ? with_sign<T>(shifted - kShift, x) : x;
}

template <typename T>
inline Vector<T> round_down(Vector<T> x) {
    const Vector<T> near = round_even<T>(x);
    return with_sign<T>(near > x ? near - T{1} : near, x);
}

// For x >= 0.
inline Vector<double> round_towards_zero(Vector<double> x) {
#if defined(__AVX512F__)
    return bit_cast<Vector<double>>(_mm512_roundscale_pd(bit_cast<__m512d>(x), _MM_FROUND_TO_ZERO));
#elif defined(__AVX2__)
    return bit_cast<Vector<double>>(_mm256_round_pd(bit_cast<__m256d>(x), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC));
#else
    return round_down<double>(x);
#endif
}

template <typename T>
inline Vector<T> round_up(Vector<T> x) {
    const Vector<T> near = round_even<T>(x);
    return with_sign<T>(near < x ? near + T{1} : near, x);
}

// exp(x) - 1 for x <= 64. Error: at most 2 ulp.
template <typename T>
inline Vector<T> exp_minus_one(Vector<T> x) {
    using C = ExpConstants<T>;
    using Bits = typename BitsOf<T>::type;
    constexpr T kLow = sizeof(T) == 4 ? T(-30) : T(-50);  // smaller x give -1 to the last bit
    const Vector<T> bounded = at_least<T>(x, kLow);
    const Vector<T> shifted = bounded * C::kLog2e + C::kRound;
    const Vector<T> n = shifted - C::kRound;
    const Vector<T> r = (bounded - n * C::kLn2High) - n * C::kLn2Low;
    const Vector<T> p = (polynomial(r, C::kPolynomial) * r) * r + r;
    const Vector<Bits> integer = bit_cast<Vector<Bits>>(shifted) - bit_cast<Bits>(C::kRound);
    const auto power = bit_cast<Vector<T>>((integer + C::kBias) << C::kMantissa);
    return power * p + (power - T{1});
}

// tanh = e / (e + 2) for e = exp(2x) - 1. Error: at most 3 ulp.
template <typename T>
inline Vector<T> tanh(Vector<T> x) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
        const Vector<float> y = at_most<float>(magnitude<float>(x), 9.125F);  // larger y give 1 to the last bit
        return with_sign<float>(piecewise(y, kTanhPieces), x);
    }
#endif
    constexpr T kHigh = sizeof(T) == 4 ? T(20) : T(44);  // larger x give 1 to the last bit
    const Vector<T> twice = magnitude<T>(x) * T{2};
    const Vector<T> e = exp_minus_one<T>(at_most<T>(twice, kHigh));
    return with_sign<T>(e / (e + T{2}), x);
}

// 1 / (1 + exp(-x)), computed from exp(-|x|), which does not overflow. Error: at most 3 ulp.
template <typename T>
inline Vector<T> sigmoid(Vector<T> x) {
    const Vector<T> e = exp_of_negative<T>(-magnitude<T>(x));
    return (x < T{0} ? e : splat(T{1})) / (e + T{1});
}

template <typename T>
struct LogConstants;

template <>
struct LogConstants<float> {
    static constexpr std::int32_t kRootHalf = 0x3f3504f3;  // the bits of sqrt(1/2)
    static constexpr float kSmallest = 0x1p-126F;          // the smallest normal number
    static constexpr float kLift = 0x1p23F;
};

template <>
struct LogConstants<double> {
    static constexpr std::int64_t kRootHalf = 0x3fe6a09e667f3bcd;
    static constexpr double kSmallest = 0x1p-1022;
    static constexpr double kLift = 0x1p52;
};

// log(m) for f = m - 1 in [sqrt(1/2) - 1, sqrt(2) - 1], plus high and low; low is added before the last rounding.
inline Vector<float> log_mantissa(Vector<float> f, Vector<float> high, Vector<float> low) {
    // The minimax polynomial of (log(1 + f) - f + f^2 / 2) / f^3.
    constexpr float kTerms[] = {0x1.1456bap-4F,  -0x1.de3bd6p-4F, 0x1.e6f0b6p-4F,  -0x1.fc2216p-4F, 0x1.233764p-3F,
                                -0x1.555c4cp-3F, 0x1.99a4b6p-3F,  -0x1.000006p-2F, 0x1.555548p-2F};
    const Vector<float> square = f * f;
    return ((polynomial(f, kTerms) * f * square + low) - square * 0.5F) + f + high;
}

inline Vector<double> log_mantissa(Vector<double> f, Vector<double> high, Vector<double> low) {
    // log(1 + f) = 2 artanh(s) for s = f / (2 + f), by the Taylor series of artanh.
    constexpr double kTerms[] = {2.0 / 25, 2.0 / 23, 2.0 / 21, 2.0 / 19, 2.0 / 17, 2.0 / 15,
                                 2.0 / 13, 2.0 / 11, 2.0 / 9,  2.0 / 7,  2.0 / 5,  2.0 / 3};
    const Vector<double> s = f / (f + 2.0);
    const Vector<double> z = s * s;
    const Vector<double> rest = polynomial(z, kTerms) * z;
    const Vector<double> half_square = f * f * 0.5;
    return high - ((half_square - (s * (half_square + rest) + low)) - f);
}

// log(x) = e log(2) + log(m) for x = 2^e m. Error: at most 1 ulp (double: 2).
template <typename T>
inline Vector<T> log(Vector<T> x) {
    using C = LogConstants<T>;
    using E = ExpConstants<T>;
    using Bits = typename BitsOf<T>::type;
    const Vector<T> lifted = magnitude<T>(x < C::kSmallest ? x * C::kLift : x);
    const Vector<Bits> above = bit_cast<Vector<Bits>>(lifted) - C::kRootHalf;
    const Vector<Bits> exponent =
        (above >> E::kMantissa) - (x < C::kSmallest ? Vector<Bits>{} + Bits{E::kMantissa} : Vector<Bits>{});
    constexpr Bits kFraction = (Bits{1} << E::kMantissa) - 1;
    const Vector<T> f = bit_cast<Vector<T>>((above & kFraction) + C::kRootHalf) - T{1};
    const Vector<T> e = __builtin_convertvector(exponent, Vector<T>);
    Vector<T> y = log_mantissa(f, e * E::kLn2High, e * E::kLn2Low);
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    y = x == T{0} ? splat(-kInfinity) : y;
    y = x < T{0} ? splat(std::numeric_limits<T>::quiet_NaN()) : y;
    return (x == kInfinity) | (x != x) ? x : y;
}

// log(1 + e) for e in [0, 1], corrected for the rounding of 1 + e. Error: at most 3 ulp.
template <typename T>
inline Vector<T> log_one_plus(Vector<T> e) {
    const Vector<T> sum = e + T{1};
    return log<T>(sum) + (e - (sum - T{1})) / sum;
}

// log(1 + exp(x)), computed from exp(-|x|). Error: at most 4 ulp for x >= -80.
template <typename T>
inline Vector<T> softplus(Vector<T> x) {
    const Vector<T> positive = x < T{0} ? Vector<T>{} : x;
    return positive + log_one_plus<T>(exp_of_negative<T>(-magnitude<T>(x)));
}

// x (1 + tanh(u)) / 2 = x sigmoid(2u) for u = sqrt(2 / pi) (x + 0.044715 x^3), which avoids cancellation. Error: at
// most 4 ulp for x >= -1; for smaller x the exponential magnifies the rounding error of u, to 48 ulp at -5.
template <typename T>
inline Vector<T> gelu_tanh(Vector<T> x) {
    constexpr T kScale = T(0x1.9884533d43651p+0);  // 2 sqrt(2 / pi)
    return x * sigmoid<T>(x * (x * x * (kScale * T(0.044715)) + kScale));
}

// x tanh(log(1 + e)) = x e (e + 2) / (e (e + 2) + 2) for e = exp(x). For x > 20, the quotient is 1. Error: at most 6
// ulp for x >= -80.
template <typename T>
inline Vector<T> mish(Vector<T> x) {
    const Vector<T> e = exp<T>(at_most<T>(x, T{40}));
    const Vector<T> n = e * (e + T{2});
    return x * (n / (n + T{2}));
}

// The square of y in two parts: the rounded square, and its rounding error.
struct Square {
    Vector<float> high;
    Vector<float> low;
};

inline Square exact_square(Vector<float> y) {
#if defined(__AVX512F__)
    const auto v = bit_cast<__m512>(y);
    const __m512 high = _mm512_mul_ps(v, v);
    return {bit_cast<Vector<float>>(high), bit_cast<Vector<float>>(_mm512_fmsub_ps(v, v, high))};
#elif defined(__FMA__)
    const auto v = bit_cast<__m256>(y);
    const __m256 high = _mm256_mul_ps(v, v);
    return {bit_cast<Vector<float>>(high), bit_cast<Vector<float>>(_mm256_fmsub_ps(v, v, high))};
#else
    // The square of the upper 12 bits of the mantissa is exact (Dekker 1971).
    const auto upper = bit_cast<Vector<float>>(bit_cast<Vector<std::int32_t>>(y) & ~0xfff);
    const Vector<float> lower = y - upper;
    Vector<float> high = y * y;
    asm("" : "+m"(high));  // rounded here, and not fused into the differences below
    return {high, ((upper * upper - high) + upper * lower * 2.0F) + lower * lower};
#endif
}

// exp(y^2) erfc(y) for y >= 0: a minimax polynomial in t = 1 / (1 + 0.4 y), accurate for y <= 10.2.
inline Vector<float> scaled_erfc(Vector<float> y) {
    constexpr float kTerms[] = {-0x1.de856cp-6F, 0x1.9137c2p-3F, -0x1.f9b602p-2F, 0x1.14e79cp-1F, -0x1.1d90c2p-2F,
                                0x1.13938ap-2F,  0x1.0babc4p-3F, 0x1.b7b51p-3F,   0x1.ccc168p-3F, 0x1.ce3eb8p-3F};
    const Vector<float> t = 1.0F / (y * 0.4F + 1.0F);
    return polynomial(t, kTerms) * t;
}

// exp(y^2 / 2) times the normal distribution function of -y, for 0 <= y <= 14.4.
inline Vector<float> scaled_tail(Vector<float> y) {
#if defined(__AVX512F__)
    return piecewise(y, kNormalTailPieces);
#else
    return scaled_erfc(y * 0x1.6a09e6p-1F) * 0.5F;
#endif
}

// The error function. Error: at most 3 ulp.
inline Vector<float> erf(Vector<float> x) {
#if defined(__AVX512F__)
    const Vector<float> y = at_most<float>(magnitude<float>(x), 3.96875F);  // larger y give 1 to the last bit
    return with_sign<float>(piecewise(y, kErfPieces), x);
#else
    // The minimax polynomial of erf(x) / x in x^2 for |x| <= 1.
    constexpr float kTerms[] = {0x1.496a1cp-14F, -0x1.a3f6f8p-11F, 0x1.5405b0p-8F, -0x1.b7f90cp-6F,
                                0x1.ce2cf8p-4F,  -0x1.81273ep-2F,  0x1.20dd74p+0F};
    const Vector<float> y = magnitude<float>(x);
    const Vector<float> near = x * polynomial(x * x, kTerms);
    const Vector<float> bounded = at_most<float>(y, 4.0F);  // larger y give 1 to the last bit
    const Vector<float> far = 1.0F - exp_of_negative<float>(-bounded * bounded) * scaled_erfc(bounded);
    return y <= 1.0F ? near : with_sign<float>(x != x ? x : far, x);
#endif
}

// x times the normal distribution function: x erfc(-x / sqrt(2)) / 2. Error: at most 8 ulp for x >= -4, 12 ulp for x >=
// -12. The exponential is computed of the exact square; otherwise its error would grow with the square.
inline Vector<float> gelu(Vector<float> x) {
    constexpr float kLast = 14.4F;  // smaller -y give 0
    const Vector<float> y = magnitude<float>(x);
    // From 6 on, the tail does not change 1. So y is bounded there, lest the tail become subnormal, which would be
    // slow.
    const Vector<float> bounded = min_of<float>(y, x < 0.0F ? splat(kLast) : splat(6.0F));
    const Square square = exact_square(bounded);
    const Vector<float> density = exp_inside<float>(square.high * -0.5F) * (1.0F - square.low * 0.5F);
    const Vector<float> tail = density * scaled_tail(bounded);
    return x * (x < 0.0F ? (x < -kLast ? Vector<float>{} : tail) : 1.0F - tail);
}

// --- functions of float computed in double ----------------------------------------------------------------------

// Half a vector of floats: as many elements as a vector of doubles has.
using HalfFloats = VectorOf<float, kVectorBytes / 2>::type;

inline Vector<double> widen(HalfFloats x) {
    return __builtin_convertvector(x, Vector<double>);
}

inline HalfFloats narrow(Vector<double> x) {
    return __builtin_convertvector(x, HalfFloats);
}

// Writes the argument of a sine or cosine as n pi / 2 + r with |r| <= pi / 4.
struct QuarterTurns {
    Vector<std::int64_t> turns;  // n, in the low bits
    Vector<double> sine;         // of r
    Vector<double> cosine;
};

// For |x| <= 2^20.
inline QuarterTurns quarter_turns(Vector<double> x) {
    constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
    constexpr double kHigh = 0x1.921fb544p+0;  // 33 bits of pi / 2, so that its multiples are exact
    constexpr double kLow = 0x1.0b4611a626331p-34;
    constexpr double kSine[] = {-1.0 / 39916800, 1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6};
    constexpr double kCosine[] = {1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320, -1.0 / 720, 1.0 / 24, -0.5};
    const Vector<double> shifted = x * kTwoOverPi + ExpConstants<double>::kRound;
    const Vector<double> n = shifted - ExpConstants<double>::kRound;
    const Vector<double> r = (x - n * kHigh) - n * kLow;
    const Vector<double> z = r * r;
    return {bit_cast<Vector<std::int64_t>>(shifted), x == 0.0 ? x : polynomial(z, kSine) * z * r + r,
            polynomial(z, kCosine) * z + 1.0};
}

// Returns `result`, but function(x) for each x beyond 2^20.
template <typename Function>
inline Vector<double> unless_large(Vector<double> x, Vector<double> result, Function function) {
    const Vector<std::int64_t> large = magnitude<double>(x) > 0x1p20;
    std::int64_t any_large = 0;
    for (int i = 0; i < static_cast<int>(kLanes<double>); ++i) {
        any_large |= large[i];
    }
    return any_large == 0 ? result : (large ? each_lane<double>(x, function) : result);
}

// sin(x + quarters * pi / 2) of floats, computed in double. Error: at most 1 ulp. For |x| > 2^20, calls the C library.
inline Vector<double> sine(Vector<double> x, std::int64_t quarters) {
    const auto [turns, s, c] = quarter_turns(x);
    const Vector<std::int64_t> quadrant = turns + quarters;
    const Vector<double> y = (quadrant & 1) != 0 ? c : s;
    const auto result = bit_cast<Vector<double>>(bit_cast<Vector<std::int64_t>>(y) ^ ((quadrant & 2) << 62));
    return unless_large(x, result, [&](double v) { return quarters == 0 ? std::sin(v) : std::cos(v); });
}

// tan of floats, with the error of sine.
inline Vector<double> tangent(Vector<double> x) {
    const auto [turns, s, c] = quarter_turns(x);
    const Vector<std::int64_t> odd = (turns & 1) != 0;
    const Vector<double> result = (odd ? -c : s) / (odd ? s : c);
    return unless_large(x, result, [](double v) { return std::tan(v); });
}

// The exact remainder of a / b of floats, with the sign of a. Below 2^29, the quotient in double is never rounded up to
// an integer, because it differs from an integer by more than 2^-24. For larger quotients, calls the C library.
inline Vector<double> remainder(Vector<double> a, Vector<double> b) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const Vector<double> size = magnitude<double>(a);
    const Vector<double> divisor = magnitude<double>(b);
    const Vector<double> quotient = size / divisor;
    Vector<double> rest = size < divisor ? size : size - round_towards_zero(quotient) * divisor;
    const Vector<std::int64_t> large = (quotient >= 0x1p29) & (quotient < kInfinity);
    std::int64_t any_large = 0;
    for (int i = 0; i < static_cast<int>(kLanes<double>); ++i) {
        any_large |= large[i];
    }
    if (any_large != 0) {
        for (int i = 0; i < static_cast<int>(kLanes<double>); ++i) {
            rest[i] = large[i] != 0 ? std::fmod(size[i], divisor[i]) : rest[i];
        }
    }
    return with_sign<double>(rest, a);
}

// a ** b of floats, as exp(b log|a|) in double. Error: at most 1 ulp. Special cases follow C's pow.
inline Vector<double> power(Vector<double> a, Vector<double> b) {
    using Bits = Vector<std::int64_t>;
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const Vector<double> size = magnitude<double>(a);
    Vector<double> y = exp<double>(b * log<double>(size));
    y = (b == 0.0) | (a == 1.0) | ((size == 1.0) & (magnitude<double>(b) == kInfinity)) ? splat(1.0) : y;
    // Floats of at least 2^24 are even integers. They are bounded, so that they can be converted.
    const Vector<double> bounded = magnitude<double>(b) > 0x1p25 ? splat(0x1p25) : b;
    const Bits integer = __builtin_convertvector(bounded, Bits);
    const Bits is_integer = __builtin_convertvector(integer, Vector<double>) == bounded;
    const Bits is_odd = is_integer & ((integer & 1) != 0);
    y = (a < 0.0) & (a != -kInfinity) & ~is_integer & (b == b) ? splat(std::numeric_limits<double>::quiet_NaN()) : y;
    return bit_cast<Vector<double>>(bit_cast<Bits>(y) ^ (bit_cast<Bits>(a) & kSignBit<double> & is_odd));
}

}  // namespace
}  // namespace graphkit
