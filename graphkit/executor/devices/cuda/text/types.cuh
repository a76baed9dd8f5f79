// Definitions for generated kernels: types, float16 and bfloat16, 16-byte accesses, division by a known number. This
// file and the others of its folder are put before the source of kernels. NVRTC compiles them, without standard
// headers; and, in tests, a C++ compiler, after a header that defines CUDA's keywords and functions for the CPU.

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

// float16 and bfloat16 in memory. Kernels compute with floats.
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

// --- float16 and bfloat16 --------------------------------------------------------------------------------------------

// Rounded to nearest even, as in IEEE 754; NaN stays NaN.
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

// N elements that one access reads or writes: up to 16 bytes.
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

// Reads or writes `left` adjacent elements, at most N. Their address must be a multiple of the size of N elements, or
// of 16 bytes if that is smaller.
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

// The value of another thread of the warp. All threads of the warp must call it.
template <typename T>
GK_INLINE T gk_shuffle_xor(T x, int far) {
    return (T)__shfl_xor_sync(0xffffffffu, x, far);
}
// The value of the thread `far` before this one; x if there is none.
template <typename T>
GK_INLINE T gk_shuffle_up(T x, int far) {
    return (T)__shfl_up_sync(0xffffffffu, x, far);
}
