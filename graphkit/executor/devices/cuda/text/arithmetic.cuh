// The operations of pointwise programs, and conversions.

// --- arithmetic ------------------------------------------------------------------------------------------------------

#define GK_WRAPPING(name, operator)                                   \
    template <typename T>                                             \
    GK_INLINE T name(T a, T b) {                                      \
        typedef typename gk_traits<T>::wrapping U;                    \
        return (T)((U)a operator(U) b);                               \
    }
GK_WRAPPING(gk_add, +)
GK_WRAPPING(gk_sub, -)
GK_WRAPPING(gk_mul, *)
#undef GK_WRAPPING

GK_INLINE float gk_mul_add(float a, float b, float c) {
    return fmaf(a, b, c);
}
GK_INLINE double gk_mul_add(double a, double b, double c) {
    return fma(a, b, c);
}
template <typename T>
GK_INLINE T gk_mul_add(T a, T b, T c) {
    return gk_add(gk_mul(a, b), c);
}
GK_INLINE float gk_mul_sub(float a, float b, float c) {
    return fmaf(a, b, -c);
}
GK_INLINE double gk_mul_sub(double a, double b, double c) {
    return fma(a, b, -c);
}
template <typename T>
GK_INLINE T gk_mul_sub(T a, T b, T c) {
    return gk_sub(gk_mul(a, b), c);
}
GK_INLINE float gk_nmul_add(float a, float b, float c) {
    return fmaf(-a, b, c);
}
GK_INLINE double gk_nmul_add(double a, double b, double c) {
    return fma(-a, b, c);
}
template <typename T>
GK_INLINE T gk_nmul_add(T a, T b, T c) {
    return gk_sub(c, gk_mul(a, b));
}

// If an operand is NaN, the result is NaN.
template <typename T>
GK_INLINE T gk_minimum(T a, T b) {
    return a < b || a != a ? a : b;
}
template <typename T>
GK_INLINE T gk_maximum(T a, T b) {
    return a > b || a != a ? a : b;
}
template <typename T>
GK_INLINE T gk_clip(T a, T b, T c) {
    return gk_minimum(gk_maximum(a, b), c);
}

template <typename T>
GK_INLINE T gk_neg(T a) {
    return (T)(-(typename gk_traits<T>::wrapping)a);
}
GK_INLINE float gk_abs(float a) {
    return fabsf(a);
}
GK_INLINE double gk_abs(double a) {
    return fabs(a);
}
template <typename T>
GK_INLINE T gk_abs(T a) {
    return gk_traits<T>::is_signed && a < (T)0 ? gk_neg(a) : a;
}
// -1, 0 or 1; NaN for NaN.
template <typename T>
GK_INLINE T gk_sign(T a) {
    return a != a ? a : (T)((a > (T)0) - (a < (T)0));
}
template <typename T>
GK_INLINE T gk_prelu(T a, T b) {
    return a >= (T)0 ? a : gk_mul(a, b);
}
template <typename T>
GK_INLINE T gk_threshold(T a, T b) {
    return a > b ? a : (T)0;
}

// If the count is negative, or at least the number of bits, a shift to the left gives 0. A shift to the right gives 0,
// or -1 for a negative number.
template <typename T>
GK_INLINE T gk_shift_left(T a, T b) {
    typedef typename gk_traits<T>::bits U;
    return (U)b < sizeof(T) * 8 ? (T)((gk_u64)(U)a << (U)b) : (T)0;
}
template <typename T>
GK_INLINE T gk_shift_right(T a, T b) {
    typedef typename gk_traits<T>::bits U;
    return (U)b < sizeof(T) * 8 ? (T)(a >> (U)b) : (T)(a < (T)0 ? -1 : 0);
}

// Division of an integer by 0 sets the fault and gives 0. Division of the smallest integer by -1 wraps around.
GK_INLINE float gk_div(float a, float b) {
    return a / b;
}
GK_INLINE double gk_div(double a, double b) {
    return a / b;
}
template <typename T>
GK_INLINE T gk_div(T a, T b, unsigned* fault) {
    if (b == 0) {
        *fault = 1;
        return 0;
    }
    return gk_traits<T>::is_signed && b == (T)-1 ? gk_neg(a) : (T)(a / b);
}
GK_INLINE float gk_fmod(float a, float b) {
    return fmodf(a, b);
}
GK_INLINE double gk_fmod(double a, double b) {
    return fmod(a, b);
}
template <typename T>
GK_INLINE T gk_fmod(T a, T b, unsigned* fault) {
    if (b == 0) {
        *fault = 1;
        return 0;
    }
    return gk_traits<T>::is_signed && b == (T)-1 ? (T)0 : (T)(a % b);
}
// The result has the sign of the divisor.
GK_INLINE float gk_mod(float a, float b) {
    const float rest = fmodf(a, b);
    return rest == 0 ? copysignf(rest, b) : ((rest < 0) != (b < 0) ? rest + b : rest);
}
GK_INLINE double gk_mod(double a, double b) {
    const double rest = fmod(a, b);
    return rest == 0 ? copysign(rest, b) : ((rest < 0) != (b < 0) ? rest + b : rest);
}
template <typename T>
GK_INLINE T gk_mod(T a, T b, unsigned* fault) {
    const T rest = gk_fmod(a, b, fault);
    return gk_traits<T>::is_signed && rest != 0 && (rest < 0) != (b < 0) ? (T)(rest + b) : rest;
}
GK_INLINE float gk_pow(float a, float b) {
    return powf(a, b);
}
GK_INLINE double gk_pow(double a, double b) {
    return pow(a, b);
}
// Integer powers wrap around. A negative exponent gives the reciprocal, rounded towards zero.
template <typename T>
GK_INLINE T gk_pow(T a, T b, unsigned* fault) {
    if (gk_traits<T>::is_signed && b < (T)0) {
        if (a == 0) {
            *fault = 1;
        }
        return a == (T)1 ? (T)1 : (a == (T)-1 ? (T)((b & 1) != 0 ? -1 : 1) : (T)0);
    }
    gk_u64 result = 1, base = (gk_u64)a;
    for (gk_u64 rest = (gk_u64)b; rest != 0; rest >>= 1) {
        result *= (rest & 1) != 0 ? base : 1;
        base *= base;
    }
    return (T)result;
}

// Unsigned integers with the same order as the elements. Both zeros are equal, and NaN comes last.
GK_INLINE gk_u32 gk_ordered(float x) {
    const gk_u32 bits = __float_as_uint(x == 0 ? 0.0f : x);
    return x != x ? 0xffffffffu : (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
GK_INLINE gk_u64 gk_ordered(double x) {
    const gk_u64 bits = (gk_u64)__double_as_longlong(x == 0 ? 0.0 : x);
    return x != x ? ~0ULL : (bits >> 63) != 0 ? ~bits : bits | 1ULL << 63;
}
GK_INLINE gk_u32 gk_ordered(gk_i32 x) {
    return (gk_u32)x ^ 0x80000000u;
}
GK_INLINE gk_u32 gk_ordered(gk_u32 x) {
    return x;
}
GK_INLINE gk_u64 gk_ordered(gk_i64 x) {
    return (gk_u64)x ^ 1ULL << 63;
}
GK_INLINE gk_u64 gk_ordered(gk_u64 x) {
    return x;
}

// --- functions of floats ---------------------------------------------------------------------------------------------

#define GK_FUNCTION(name)                   \
    GK_INLINE float gk_##name(float a) {    \
        return name##f(a);                  \
    }                                       \
    GK_INLINE double gk_##name(double a) {  \
        return name(a);                     \
    }
GK_FUNCTION(floor)
GK_FUNCTION(ceil)
GK_FUNCTION(rint)
GK_FUNCTION(sqrt)
GK_FUNCTION(exp)
GK_FUNCTION(expm1)
GK_FUNCTION(log)
GK_FUNCTION(log1p)
GK_FUNCTION(tanh)
GK_FUNCTION(erf)
GK_FUNCTION(erfc)
GK_FUNCTION(sin)
GK_FUNCTION(cos)
GK_FUNCTION(tan)
GK_FUNCTION(asin)
GK_FUNCTION(acos)
GK_FUNCTION(atan)
GK_FUNCTION(sinh)
GK_FUNCTION(cosh)
GK_FUNCTION(asinh)
GK_FUNCTION(acosh)
GK_FUNCTION(atanh)
#undef GK_FUNCTION

template <typename T>
GK_INLINE T gk_round(T a) {
    return gk_rint(a);
}
template <typename T>
GK_INLINE T gk_sigmoid(T a) {
    return (T)1 / ((T)1 + gk_exp(-a));
}
template <typename T>
GK_INLINE T gk_swish(T a, T b) {
    return a * gk_sigmoid(a * b);
}
template <typename T>
GK_INLINE T gk_hard_swish_grad(T a, T b) {
    const T inside = b > (T)3 ? a : gk_mul(a, (b + (T)1.5) * (T)(1.0 / 3));
    return b < (T)-3 ? (T)0 : inside;
}
template <typename T>
GK_INLINE T gk_unit_line(T a, T b, T c) {
    return gk_minimum(gk_maximum(gk_mul_add(a, b, c), (T)0), (T)1);
}
template <typename T>
GK_INLINE T gk_softplus(T a) {
    return gk_maximum(a, (T)0) + gk_log1p(gk_exp(-gk_abs(a)));
}
template <typename T>
GK_INLINE T gk_mish(T a) {
    return a * gk_tanh(gk_softplus(a));
}
template <typename T>
GK_INLINE T gk_softsign(T a) {
    return a / (gk_abs(a) + (T)1);
}
template <typename T>
GK_INLINE T gk_gelu(T a) {
    return (T)0.5 * a * gk_erfc(a * (T)-0.70710678118654752440);
}
template <typename T>
GK_INLINE T gk_gelu_tanh(T a) {
    return (T)0.5 * a * ((T)1 + gk_tanh((T)0.79788456080286535588 * (a + (T)0.044715 * a * a * a)));
}

// --- conversions -----------------------------------------------------------------------------------------------------

// The result is unspecified if a float is outside of the range of the integer type, as in numpy.
template <typename To, typename From>
struct gk_conversion {
    GK_INLINE To of(From a) {
        return gk_traits<From>::is_float && !gk_traits<To>::is_float && sizeof(To) < 8 ? (To)(gk_i64)a : (To)a;
    }
};
template <typename To, typename From>
GK_INLINE To gk_cast(From a) {
    return gk_conversion<To, From>::of(a);
}

// Rounds a double to float by round to odd: the last bit shows that the result is inexact. So a second rounding to 16
// bits gives the same result as a single one.
GK_INLINE float gk_to_odd(double a) {
    const float near = (float)a;
    const double wide = (double)near;
    if (wide == a || a != a || near == gk_limits<float>::highest() || near == gk_limits<float>::lowest()) {
        return near;
    }
    gk_u32 bits = __float_as_uint(near);
    if ((bits & 1u) == 0) {
        bits += fabs(wide) < fabs(a) ? 1u : ~0u;
    }
    return __uint_as_float(bits);
}
