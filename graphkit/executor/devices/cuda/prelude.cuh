// What generated kernels share: half floats, 16-byte accesses, division by a known number, and the functions that the
// opcodes of the pointwise machine stand for. It is compiled by NVRTC, which has no headers of its own, and by a C++
// compiler behind a header that gives CUDA's words a meaning on a processor.

#ifdef __CUDACC__
#pragma nv_diag_suppress 177  // a kernel needs few of these functions
#endif

#define GK_INLINE static __device__ __forceinline__

typedef signed char gk_i8;
typedef unsigned char gk_u8;
typedef short gk_i16;
typedef unsigned short gk_u16;
typedef int gk_i32;
typedef unsigned int gk_u32;
typedef long long gk_i64;
typedef unsigned long long gk_u64;

// A half float in memory. Kernels compute with floats.
struct gk_f16 {
    gk_u16 bits;
};
struct gk_bf16 {
    gk_u16 bits;
};

// --- types -----------------------------------------------------------------------------------------------------------

template <typename T>
struct gk_traits;
#define GK_TRAITS(type, wraps_as, bits_as, floats, signs) \
    template <>                                           \
    struct gk_traits<type> {                              \
        typedef wraps_as wrapping; /* arithmetic wraps */ \
        typedef bits_as bits;      /* of the same size */ \
        static const bool is_float = floats;              \
        static const bool is_signed = signs;              \
    };
GK_TRAITS(float, float, gk_u32, true, true)
GK_TRAITS(double, double, gk_u64, true, true)
GK_TRAITS(gk_i8, gk_u32, gk_u8, false, true)
GK_TRAITS(gk_i16, gk_u32, gk_u16, false, true)
GK_TRAITS(gk_i32, gk_u32, gk_u32, false, true)
GK_TRAITS(gk_i64, gk_u64, gk_u64, false, true)
GK_TRAITS(gk_u8, gk_u32, gk_u8, false, false)
GK_TRAITS(gk_u16, gk_u32, gk_u16, false, false)
GK_TRAITS(gk_u32, gk_u32, gk_u32, false, false)
GK_TRAITS(gk_u64, gk_u64, gk_u64, false, false)
#undef GK_TRAITS

template <typename T>
struct gk_limits;
template <>
struct gk_limits<float> {
    GK_INLINE float lowest() { return -__int_as_float(0x7f800000); }
    GK_INLINE float highest() { return __int_as_float(0x7f800000); }
};
template <>
struct gk_limits<double> {
    GK_INLINE double lowest() { return -__longlong_as_double(0x7ff0000000000000); }
    GK_INLINE double highest() { return __longlong_as_double(0x7ff0000000000000); }
};

#define GK_LIMITS(type, least, most)      \
    template <>                           \
    struct gk_limits<type> {              \
        GK_INLINE type lowest() {         \
            return least;                 \
        }                                 \
        GK_INLINE type highest() {        \
            return most;                  \
        }                                 \
    };
GK_LIMITS(gk_i8, -128, 127)
GK_LIMITS(gk_i16, -32768, 32767)
GK_LIMITS(gk_i32, -2147483647 - 1, 2147483647)
GK_LIMITS(gk_i64, -9223372036854775807LL - 1, 9223372036854775807LL)
GK_LIMITS(gk_u8, 0, 255)
GK_LIMITS(gk_u16, 0, 65535)
GK_LIMITS(gk_u32, 0, 4294967295u)
GK_LIMITS(gk_u64, 0, 18446744073709551615ULL)
#undef GK_LIMITS

// --- half floats -----------------------------------------------------------------------------------------------------

// Rounded to even, as IEEE 754 does; NaN stays NaN.
GK_INLINE gk_f16 gk_to_f16(float x) {
    gk_f16 y;
#ifdef __CUDA_ARCH__
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
    y.bits = gk_host_to_f16(x);
#endif
    return y;
}

GK_INLINE float gk_from_f16(gk_f16 x) {
#ifdef __CUDA_ARCH__
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#else
    return gk_host_from_f16(x.bits);
#endif
}

GK_INLINE gk_bf16 gk_to_bf16(float x) {
    const gk_u32 bits = __float_as_uint(x);
    const gk_u32 rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    gk_bf16 y;
    y.bits = (gk_u16)(x != x ? (bits >> 16 | 0x40u) : rounded);
    return y;
}

GK_INLINE float gk_from_bf16(gk_bf16 x) {
    return __uint_as_float((gk_u32)x.bits << 16);
}

GK_INLINE float gk_read(gk_f16 x) {
    return gk_from_f16(x);
}
GK_INLINE float gk_read(gk_bf16 x) {
    return gk_from_bf16(x);
}
template <typename T>
GK_INLINE T gk_read(T x) {
    return x;
}

GK_INLINE void gk_write(gk_f16& y, float x) {
    y = gk_to_f16(x);
}
GK_INLINE void gk_write(gk_bf16& y, float x) {
    y = gk_to_bf16(x);
}
template <typename T>
GK_INLINE void gk_write(T& y, T x) {
    y = x;
}

// 16 bytes.
struct alignas(16) gk_pair {
    gk_u64 a, b;
};

// --- memory ----------------------------------------------------------------------------------------------------------

// N elements that are read and written at once: 16 bytes, or fewer.
template <typename T, int N>
struct alignas(sizeof(T) * N) gk_pack {
    T e[N];
};

template <typename T, int N>
GK_INLINE gk_pack<T, N> gk_load(const T* x, int count) {
    if (count == N) {
        return *reinterpret_cast<const gk_pack<T, N>*>(x);
    }
    gk_pack<T, N> y;
    for (int k = 0; k < N; ++k) {
        if (k < count) {
            y.e[k] = x[k];
        } else {
            y.e[k] = T();
        }
    }
    return y;
}

template <typename T, int N>
GK_INLINE void gk_store(T* y, const gk_pack<T, N>& x, int count) {
    if (count == N) {
        *reinterpret_cast<gk_pack<T, N>*>(y) = x;
        return;
    }
    for (int k = 0; k < N; ++k) {
        if (k < count) {
            y[k] = x.e[k];
        }
    }
}

// As many as `left`, at most N, of a run of elements that begins at a multiple of its size or of 16 bytes.
template <typename T, int N>
struct gk_run {
    static const int width = N * sizeof(T) <= 16 ? N : 16 / (int)sizeof(T);  // of one access

    GK_INLINE void load(const T* x, int left, T* y) {
#pragma unroll
        for (int first = 0; first < N; first += width) {
            const gk_pack<T, width> p = gk_load<T, width>(x + first, left - first < width ? left - first : width);
#pragma unroll
            for (int k = 0; k < width; ++k) {
                y[first + k] = p.e[k];
            }
        }
    }

    GK_INLINE void store(T* y, int left, const T* x) {
#pragma unroll
        for (int first = 0; first < N; first += width) {
            gk_pack<T, width> p;
#pragma unroll
            for (int k = 0; k < width; ++k) {
                p.e[k] = x[first + k];
            }
            gk_store<T, width>(y + first, p, left - first < width ? left - first : width);
        }
    }
};

// Division of a number below 2^31 by a known one (Granlund, Montgomery 1994, figure 4.1).
GK_INLINE gk_u32 gk_quotient(gk_u32 n, gk_u32 multiplier, gk_u32 shift) {
    return (__umulhi(n, multiplier) + n) >> shift;
}

// The value of another thread of the warp; all of them call.
template <typename T>
GK_INLINE T gk_shuffle_xor(T x, int far) {
    return (T)__shfl_xor_sync(0xffffffffu, x, far);
}
// That of the thread `far` before this one; x where there is none.
template <typename T>
GK_INLINE T gk_shuffle_up(T x, int far) {
    return (T)__shfl_up_sync(0xffffffffu, x, far);
}

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

// NaN wins.
template <typename T>
GK_INLINE T gk_minimum(T a, T b) {
    return a < b || a != a ? a : b;
}
template <typename T>
GK_INLINE T gk_maximum(T a, T b) {
    return a > b || a != a ? a : b;
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
// -1, 0 or 1; NaN stays.
template <typename T>
GK_INLINE T gk_sign(T a) {
    return a != a ? a : (T)((a > (T)0) - (a < (T)0));
}
template <typename T>
GK_INLINE T gk_prelu(T a, T b) {
    return a >= (T)0 ? a : gk_mul(a, b);
}

// Shifts by a negative count, or one not below the width, leave only the sign.
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

// An integer divided by 0 sets the fault and gives 0; the smallest integer by -1 wraps around.
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
// The divisor's sign.
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
// Wraps around; a negative exponent gives the reciprocal, towards zero.
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

// An element of an axis and its position; -1 where there is none.
template <typename T>
struct gk_placed {
    T x;
    gk_i64 at;
};

template <typename T>
GK_INLINE gk_placed<T> gk_shuffle_xor(gk_placed<T> a, int far) {
    gk_placed<T> b;
    b.x = gk_shuffle_xor(a.x, far);
    b.at = gk_shuffle_xor(a.at, far);
    return b;
}

// The largest or smallest of two, NaN before all others; of equal ones the last or first.
template <bool Largest, bool Last, typename T>
GK_INLINE gk_placed<T> gk_extreme(gk_placed<T> a, gk_placed<T> b) {
    if (a.at < 0 || b.at < 0) {
        return a.at < 0 ? b : a;
    }
    const bool a_nan = a.x != a.x, b_nan = b.x != b.x;
    const bool tie = a_nan == b_nan && (a_nan || a.x == b.x);
    const bool wins = tie ? (b.at > a.at) == Last : a_nan != b_nan ? b_nan : (Largest ? b.x > a.x : b.x < a.x);
    return wins ? b : a;
}

// Whole numbers in the order of elements: zeros are equal, and NaN comes last.
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
GK_INLINE T gk_softplus(T a) {
    return gk_maximum(a, (T)0) + gk_log1p(gk_exp(-gk_abs(a)));
}
template <typename T>
GK_INLINE T gk_mish(T a) {
    return a * gk_tanh(gk_softplus(a));
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

// A float outside of the integers' range has an unspecified result, as in numpy.
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

// To float, so that rounding again to 16 bits is as if it were done once: what is lost shows in the last bit.
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

// --- random numbers --------------------------------------------------------------------------------------------------

struct gk_words {
    gk_u32 w[4];
};

// Block `block` of a stream: Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011).
GK_INLINE gk_words gk_philox(gk_u64 seed, gk_u64 step, gk_u32 stream, gk_u32 block) {
    gk_u32 c0 = block, c1 = stream, c2 = (gk_u32)step, c3 = (gk_u32)(step >> 32);
    gk_u32 k0 = (gk_u32)seed, k1 = (gk_u32)(seed >> 32);
#pragma unroll
    for (int turn = 0; turn < 10; ++turn) {
        const gk_u64 p0 = (gk_u64)c0 * 0xD2511F53u, p1 = (gk_u64)c2 * 0xCD9E8D57u;
        c0 = (gk_u32)(p1 >> 32) ^ c1 ^ k0;
        c2 = (gk_u32)(p0 >> 32) ^ c3 ^ k1;
        c1 = (gk_u32)p1;
        c3 = (gk_u32)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// Fractions in [0, 1), of one word and of two.
GK_INLINE double gk_fraction24(gk_u32 word) {
    return (double)(word >> 8) * 0x1p-24;
}
GK_INLINE double gk_fraction53(gk_u32 high, gk_u32 low) {
    return ((double)(high >> 5) * 0x1p26 + (double)(low >> 6)) * 0x1p-53;
}

// Two standard normal numbers of two words (Box, Muller 1958), to a few units in the last place: what a float would lose
// of the words beside 1 and beside the quarters of a turn is taken from the integers.
GK_INLINE void gk_normals(gk_u32 radial, gk_u32 turn, float* z) {
    const float logarithm =
        radial < 0x80000000u ? logf((float)(radial + 1) * 0x1p-32f) : log1pf(-(float)(~radial) * 0x1p-32f);
    const float radius = sqrtf(-2.0f * logarithm);
    const gk_u32 quarter = (turn + 0x20000000u) >> 30;
    float sine, cosine;
    sincospif((float)(gk_i32)(turn - (quarter << 30)) * 0x1p-31f, &sine, &cosine);
    const float a = quarter & 1u ? sine : cosine, b = quarter & 1u ? cosine : sine;
    z[0] = radius * (quarter == 1 || quarter == 2 ? -a : a);
    z[1] = radius * (quarter >= 2 ? -b : b);
}
GK_INLINE void gk_normals(gk_words w, double* z) {
    const double radius = sqrt(-2.0 * log(gk_fraction53(w.w[0], w.w[1]) + 0x1p-53));
    double sine, cosine;
    sincospi(2.0 * gk_fraction53(w.w[2], w.w[3]), &sine, &cosine);
    z[0] = radius * cosine;
    z[1] = radius * sine;
}

// A number in double precision, rounded once.
GK_INLINE void gk_round_to(gk_f16& y, double x) {
    y = gk_to_f16(gk_to_odd(x));
}
GK_INLINE void gk_round_to(gk_bf16& y, double x) {
    y = gk_to_bf16((float)x);
}
template <typename T>
GK_INLINE void gk_round_to(T& y, double x) {
    y = (T)x;
}
