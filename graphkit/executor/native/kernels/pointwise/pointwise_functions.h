// The functions of elements and vectors that pointwise kernels apply to blocks.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/pointwise/pointwise_table.h"
#include "simd/bitwise.h"
#include "simd/half_convert.h"
#include "simd/math.h"
#include "simd/trigonometric.h"

namespace graphkit {
namespace {

// The type whose arithmetic is used for T: unsigned for integers, so that they wrap around.
template <typename T, bool = std::is_integral_v<T>>
struct UnsignedOf {
    using type = T;
};
template <typename T>
struct UnsignedOf<T, true> {
    using type = std::make_unsigned_t<T>;
};

// The unsigned integer with the size of T.
template <typename T>
struct UnsignedBitsOf {
    using type = typename UnsignedOf<T>::type;
};
template <>
struct UnsignedBitsOf<float> {
    using type = std::uint32_t;
};
template <>
struct UnsignedBitsOf<double> {
    using type = std::uint64_t;
};

// If an operand is NaN, so is the result, as in Smallest and Largest; this needs fewer instructions for floats.
template <typename T>
inline Vector<T> smaller(Vector<T> a, Vector<T> b) {
    if constexpr (std::is_floating_point_v<T>) {
        return b != b ? b : min_of<T>(a, b);
    } else {
        return Smallest::combine(a, b);
    }
}

template <typename T>
inline Vector<T> larger(Vector<T> a, Vector<T> b) {
    if constexpr (std::is_floating_point_v<T>) {
        return b != b ? b : max_of<T>(a, b);
    } else {
        return Largest::combine(a, b);
    }
}

namespace functions {

#define GRAPHKIT_UNARY(Name, expression)             \
    struct Name {                                    \
        template <typename T>                        \
        static inline Vector<T> apply(Vector<T> a) { \
            return expression;                       \
        }                                            \
    };
#define GRAPHKIT_BINARY(Name, expression)                         \
    struct Name {                                                 \
        template <typename T>                                     \
        static inline Vector<T> apply(Vector<T> a, Vector<T> b) { \
            return expression;                                    \
        }                                                         \
    };
#define GRAPHKIT_TERNARY(Name, expression)                                     \
    struct Name {                                                              \
        template <typename T>                                                  \
        static inline Vector<T> apply(Vector<T> a, Vector<T> b, Vector<T> c) { \
            return expression;                                                 \
        }                                                                      \
    };
// A comparison sets all bits of an element where it is true.
#define GRAPHKIT_COMPARISON(Name, expression)                \
    struct Name {                                            \
        template <typename T>                                \
        static inline auto apply(Vector<T> a, Vector<T> b) { \
            return expression;                               \
        }                                                    \
    };
// Functions of one element that the C library computes.
#define GRAPHKIT_LIBRARY(Name, expression) \
    struct Name {                          \
        template <typename T>              \
        static inline T apply(T a) {       \
            return expression;             \
        }                                  \
    };

GRAPHKIT_BINARY(Add, a + b)
GRAPHKIT_BINARY(Sub, a - b)
GRAPHKIT_BINARY(Mul, a* b)
GRAPHKIT_BINARY(Div, a / b)
GRAPHKIT_TERNARY(MulAdd, a* b + c)
GRAPHKIT_TERNARY(MulSub, a* b - c)
GRAPHKIT_TERNARY(NegMulAdd, c - a * b)
GRAPHKIT_BINARY(BitAnd, a& b)
GRAPHKIT_BINARY(BitOr, a | b)
GRAPHKIT_BINARY(BitXor, a ^ b)
GRAPHKIT_BINARY(Minimum, smaller<T>(a, b))
GRAPHKIT_BINARY(Maximum, larger<T>(a, b))
GRAPHKIT_BINARY(Threshold, a > b ? a : Vector<T>{})
GRAPHKIT_TERNARY(Clip, smaller<T>(larger<T>(a, b), c))
GRAPHKIT_TERNARY(UnitLine, at_most<T>(at_least<T>(a* b + c, T{0}), T{1}))
GRAPHKIT_BINARY(Swish, a* sigmoid<T>(a* b))
GRAPHKIT_BINARY(HardSwishGrad,
                b < T{-3} ? Vector<T>{} : (b > T{3} ? a : a * ((b + static_cast<T>(1.5)) * static_cast<T>(1.0 / 3))))
GRAPHKIT_COMPARISON(Equal, a == b)
GRAPHKIT_COMPARISON(NotEqual, a != b)
GRAPHKIT_COMPARISON(Less, a < b)
GRAPHKIT_COMPARISON(LessEqual, a <= b)
GRAPHKIT_UNARY(Neg, -a)
GRAPHKIT_UNARY(Floor, round_down<T>(a))
GRAPHKIT_UNARY(Ceil, round_up<T>(a))
GRAPHKIT_UNARY(Round, round_even<T>(a))
GRAPHKIT_UNARY(Sqrt, square_root(a))
GRAPHKIT_UNARY(Exp, exp<T>(a))
GRAPHKIT_UNARY(Expm1, exp_minus_one<T>(a))
GRAPHKIT_UNARY(Log, log<T>(a))
GRAPHKIT_UNARY(Tanh, tanh<T>(a))
GRAPHKIT_UNARY(Sigmoid, sigmoid<T>(a))
GRAPHKIT_UNARY(Softplus, softplus<T>(a))
GRAPHKIT_UNARY(Mish, mish<T>(a))
GRAPHKIT_UNARY(Softsign, a / (magnitude<T>(a) + T{1}))
GRAPHKIT_UNARY(Erf, erf(a))
GRAPHKIT_UNARY(Gelu, gelu(a))
GRAPHKIT_UNARY(GeluTanh, gelu_tanh<T>(a))
GRAPHKIT_UNARY(Asin, arc_sine(a))
GRAPHKIT_UNARY(Acos, arc_cosine(a))
GRAPHKIT_UNARY(Atan, arc_tangent(a))
GRAPHKIT_UNARY(Sinh, hyperbolic_sine(a))
GRAPHKIT_UNARY(Cosh, hyperbolic_cosine<T>(a))
GRAPHKIT_LIBRARY(DoubleTan, std::tan(a))
GRAPHKIT_LIBRARY(DoubleAsin, std::asin(a))
GRAPHKIT_LIBRARY(DoubleAcos, std::acos(a))
GRAPHKIT_LIBRARY(DoubleAtan, std::atan(a))
GRAPHKIT_LIBRARY(DoubleSinh, std::sinh(a))
GRAPHKIT_LIBRARY(DoubleAsinh, std::asinh(a))
GRAPHKIT_LIBRARY(DoubleAcosh, std::acosh(a))
GRAPHKIT_LIBRARY(DoubleAtanh, std::atanh(a))
GRAPHKIT_LIBRARY(DoubleErf, std::erf(a))
GRAPHKIT_LIBRARY(DoubleGelu, 0.5 * a * std::erfc(a * -0x1.6a09e667f3bcdp-1))
GRAPHKIT_LIBRARY(DoubleSin, std::sin(a))
GRAPHKIT_LIBRARY(DoubleCos, std::cos(a))

#undef GRAPHKIT_UNARY
#undef GRAPHKIT_BINARY
#undef GRAPHKIT_TERNARY
#undef GRAPHKIT_COMPARISON
#undef GRAPHKIT_LIBRARY

struct Abs {
    template <typename T>
    static inline Vector<T> apply(Vector<T> a) {
        if constexpr (std::is_floating_point_v<T>) {
            return magnitude<T>(a);
        } else if constexpr (std::is_signed_v<T>) {
            using U = std::make_unsigned_t<T>;
            return a < T{0} ? bit_cast<Vector<T>>(-bit_cast<Vector<U>>(a)) : a;
        } else {
            return a;
        }
    }
};

// -1, 0 or 1; NaN stays NaN.
struct Sign {
    template <typename T>
    static inline Vector<T> apply(Vector<T> a) {
        const Vector<T> up = a > T{0} ? splat(T{1}) : Vector<T>{};
        if constexpr (std::is_unsigned_v<T>) {
            return up;
        } else {
            const Vector<T> sign = a < T{0} ? splat(static_cast<T>(-1)) : up;
            return a != a ? a : sign;
        }
    }
};

struct PRelu {
    template <typename T>
    static inline Vector<T> apply(Vector<T> a, Vector<T> b) {
        using U = typename UnsignedOf<T>::type;
        const auto scaled = bit_cast<Vector<T>>(bit_cast<Vector<U>>(a) * bit_cast<Vector<U>>(b));
        return a >= T{0} ? a : scaled;
    }
};

// If the count is negative or at least the width, the result is only the sign: 0 or, for ShiftRight, -1.
struct ShiftLeft {
    template <typename T>
    static inline Vector<T> apply(Vector<T> a, Vector<T> b) {
        using U = std::make_unsigned_t<T>;
        const auto bits = bit_cast<Vector<U>>(b);
        constexpr U kWidth = sizeof(T) * 8;
        const auto inside = bits < kWidth;
        const Vector<U> shifted = bit_cast<Vector<U>>(a) << (inside ? bits : Vector<U>{});
        return bit_cast<Vector<T>>(inside ? shifted : Vector<U>{});
    }
};

struct ShiftRight {
    template <typename T>
    static inline Vector<T> apply(Vector<T> a, Vector<T> b) {
        using U = std::make_unsigned_t<T>;
        const auto bits = bit_cast<Vector<U>>(b);
        constexpr U kWidth = sizeof(T) * 8;
        const auto inside = bits < kWidth;
        const Vector<T> shifted = a >> (inside ? bit_cast<Vector<T>>(bits) : Vector<T>{});
        const Vector<T> sign = a < T{0} ? splat(static_cast<T>(~T{0})) : Vector<T>{};
        return inside ? shifted : sign;
    }
};

struct TruncatedQuotient {
    template <typename T>
    static inline T apply(T a, T b) {
        if (b == 0) {
            divided_by_zero = true;
            return 0;
        }
        if constexpr (std::is_signed_v<T>) {
            if (b == -1) {  // the negative of the smallest integer does not exist
                return static_cast<T>(std::make_unsigned_t<T>{0} - static_cast<std::make_unsigned_t<T>>(a));
            }
        }
        return static_cast<T>(a / b);
    }
};

struct TruncatedRemainder {
    template <typename T>
    static inline T apply(T a, T b) {
        if constexpr (std::is_floating_point_v<T>) {
            return std::fmod(a, b);
        } else {
            if (b == 0) {
                divided_by_zero = true;
                return 0;
            }
            // The smallest integer divided by -1 would overflow.
            return std::is_signed_v<T> && b == static_cast<T>(-1) ? T{0} : static_cast<T>(a % b);
        }
    }
};

struct FlooredRemainder {
    template <typename T>
    static inline T apply(T a, T b) {
        const T rest = TruncatedRemainder::apply(a, b);
        if constexpr (std::is_floating_point_v<T>) {
            return rest == 0 ? std::copysign(rest, b) : ((rest < 0) != (b < 0) ? rest + b : rest);
        } else if constexpr (std::is_signed_v<T>) {
            return rest != 0 && (rest < 0) != (b < 0) ? static_cast<T>(rest + b) : rest;
        } else {
            return rest;
        }
    }
};

// Wraps around. A negative exponent gives the reciprocal, rounded towards zero.
struct IntegerPower {
    template <typename T>
    static inline T apply(T a, T b) {
        using U = std::make_unsigned_t<T>;
        if constexpr (std::is_signed_v<T>) {
            if (b < 0) {
                divided_by_zero = divided_by_zero || a == 0;
                return a == 1 ? T{1} : (a == -1 ? static_cast<T>((b & 1) != 0 ? -1 : 1) : T{0});
            }
        }
        std::uint64_t result = 1;
        auto base = static_cast<std::uint64_t>(a);
        for (auto rest = static_cast<U>(b); rest != 0; rest = static_cast<U>(rest >> 1)) {
            result *= (rest & 1U) != 0 ? base : 1;
            base *= base;
        }
        return static_cast<T>(result);
    }
};

struct DoublePower {
    static inline double apply(double a, double b) { return std::pow(a, b); }
};

// Functions of float elements that are computed in double.
#define GRAPHKIT_WIDE(Name, expression)                                             \
    struct Name {                                                                   \
        static inline Vector<double> apply(Vector<double> a) { return expression; } \
    };

GRAPHKIT_WIDE(Tan, tangent(a))
GRAPHKIT_WIDE(Asinh, inverse_hyperbolic_sine(a))
GRAPHKIT_WIDE(Acosh, inverse_hyperbolic_cosine(a))
GRAPHKIT_WIDE(Atanh, inverse_hyperbolic_tangent(a))

#undef GRAPHKIT_WIDE

struct FloatRemainder {
    static inline Vector<double> apply(Vector<double> a, Vector<double> b) { return remainder(a, b); }
};

struct FloatFlooredRemainder {
    static inline Vector<double> apply(Vector<double> a, Vector<double> b) {
        const Vector<double> rest = remainder(a, b);
        return rest == 0.0 ? with_sign<double>(rest, b) : ((rest < 0.0) != (b < 0.0) ? rest + b : rest);
    }
};

#if defined(__FMA__)
// Fused: the difference is rounded once.
inline Vector<double> minus_product(Vector<double> a, Vector<double> b, Vector<double> c) {
#if defined(__AVX512F__)
    return bit_cast<Vector<double>>(_mm512_fnmadd_pd(bit_cast<__m512d>(b), bit_cast<__m512d>(c), bit_cast<__m512d>(a)));
#else
    return bit_cast<Vector<double>>(_mm256_fnmadd_pd(bit_cast<__m256d>(b), bit_cast<__m256d>(c), bit_cast<__m256d>(a)));
#endif
}

// The exact remainder of doubles, with the sign of a. Below 2^53, the quotient is rounded to at most the next integer.
// Then the difference is negative, and no bits of it are lost either. For larger quotients, calls the C library.
struct DoubleRemainder {
    template <typename T>
    static inline Vector<double> apply(Vector<double> a, Vector<double> b) {
        constexpr double kInfinity = std::numeric_limits<double>::infinity();
        const Vector<double> size = magnitude<double>(a);
        const Vector<double> divisor = magnitude<double>(b);
        const Vector<double> quotient = size / divisor;
        Vector<double> rest = minus_product(size, round_towards_zero(quotient), divisor);
        rest = rest < 0.0 ? rest + divisor : rest;
        rest = size < divisor ? size : rest;
        const Vector<std::int64_t> large = (quotient >= 0x1p53) & (size < kInfinity) & (divisor > 0.0);
        if (any_bit<std::int64_t>(large)) {
            for (int i = 0; i < static_cast<int>(kLanes<double>); ++i) {
                rest[i] = large[i] != 0 ? std::fmod(size[i], divisor[i]) : rest[i];
            }
        }
        return with_sign<double>(rest, a);
    }
};

struct DoubleFlooredRemainder {
    template <typename T>
    static inline Vector<double> apply(Vector<double> a, Vector<double> b) {
        const Vector<double> rest = DoubleRemainder::apply<double>(a, b);
        return rest == 0.0 ? with_sign<double>(rest, b) : ((rest < 0.0) != (b < 0.0) ? rest + b : rest);
    }
};
#endif

struct FloatPower {
    static inline Vector<double> apply(Vector<double> a, Vector<double> b) { return power(a, b); }
};

template <std::int64_t Quarters>
struct Sine {
    static inline Vector<double> apply(Vector<double> a) { return sine(a, Quarters); }
};

}  // namespace functions
}  // namespace
}  // namespace graphkit
