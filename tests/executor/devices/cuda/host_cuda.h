// CUDA's words for a C++ compiler, so that a kernel runs on the processor. host_threads.cpp runs its threads.
#pragma once

// It has few words, and C's math.h instead of C++'s: a compiler reads all of them again for every library.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#include <stdint.h>
#include <string.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS

#include "host_threads.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

template <typename To, typename From>
static inline To host_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline float __int_as_float(int x) { return host_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return host_bits<float>(x); }
static inline unsigned __float_as_uint(float x) { return host_bits<unsigned>(x); }
static inline double __longlong_as_double(long long x) { return host_bits<double>(x); }
static inline long long __double_as_longlong(double x) { return host_bits<long long>(x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }

static inline unsigned atomicAdd(unsigned* x, unsigned more) {
    const unsigned before = *x;
    *x += more;
    return before;
}

// Sets the value of a conditional node. The handle is its address.
extern "C" inline void cudaGraphSetConditional(unsigned long long handle, unsigned value) {
    *reinterpret_cast<unsigned*>(handle) = value;
}

// Of x times pi.
static inline void sincospi(double x, double* sine, double* cosine) {
    *sine = sin(M_PI * x);
    *cosine = cos(M_PI * x);
}
static inline void sincospif(float x, float* sine, float* cosine) {
    *sine = (float)sin(M_PI * (double)x);
    *cosine = (float)cos(M_PI * (double)x);
}

// IEEE 754 binary16, rounded to even.
static inline unsigned short gk_host_to_f16(float x) {
    const unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u;
    const float size = fabsf(x);
    if (x != x) {
        return (unsigned short)(sign | 0x7e00u);
    }
    if (size >= 65520.0f) {
        return (unsigned short)(sign | 0x7c00u);
    }
    if (size < 0x1p-14f) {  // multiples of 2^-24
        return (unsigned short)(sign | (unsigned)rintf(size * 0x1p24f));
    }
    const unsigned rounded = (bits & 0x7fffffffu) + 0xfffu + (bits >> 13 & 1u);
    return (unsigned short)(sign | ((rounded >> 13) - (112u << 10)));
}
static inline float gk_host_from_f16(unsigned short h) {
    const unsigned exponent = h >> 10 & 31u, fraction = h & 0x3ffu;
    const float size = exponent == 0    ? (float)fraction * 0x1p-24f
                       : exponent == 31 ? (fraction ? NAN : INFINITY)
                                        : __uint_as_float((exponent + 112u) << 23 | fraction << 13);
    return h & 0x8000u ? -size : size;
}

// --- threads that wait for each other --------------------------------------------------------------------------------

static inline void __syncthreads() { host_wait(HOST_AT_BLOCK); }

template <typename T>
static T host_read(const HostSlot& slot) {
    T x;
    memcpy(&x, slot.bytes, sizeof x);
    return x;
}

template <typename T>
static T __shfl_xor_sync(unsigned, T x, int far) {
    const HostSlot* slots = host_exchange(&x, sizeof x);
    return host_read<T>(slots[threadIdx.x % kHostWarp ^ (unsigned)far]);
}

template <typename T>
static T __shfl_up_sync(unsigned, T x, int far) {
    const unsigned lane = threadIdx.x % kHostWarp;
    const HostSlot* slots = host_exchange(&x, sizeof x);
    return host_read<T>(slots[lane < (unsigned)far ? lane : lane - (unsigned)far]);
}

// The lanes whose x is that of the thread.
static inline unsigned __match_any_sync(unsigned, unsigned x) {
    const HostSlot* slots = host_exchange(&x, sizeof x);
    unsigned found = 0;
    for (unsigned lane = 0; lane < kHostWarp; ++lane) {
        found |= (unsigned)(host_read<unsigned>(slots[lane]) == x) << lane;
    }
    return found;
}

// d += a b of a warp. Operands lie in registers as those of PTX's mma.m16n8k16: four words of a and two of b for each
// thread, with two half floats in each word. half: the float of a half float's bits.
template <typename Half>
static void gk_host_multiply(float* d, const unsigned* a, const unsigned* b, Half half) {
    float values[12];
    for (unsigned i = 0; i < 6; ++i) {
        const unsigned word = i < 4 ? a[i] : b[i - 4];
        values[2 * i] = half((unsigned short)(word & 0xffffu));
        values[2 * i + 1] = half((unsigned short)(word >> 16));
    }
    host_multiply_halves(d, values);
}

// As mma.m16n8k8 has them, except for the order of the terms, by the leading 11 bits of floats.
static void gk_host_multiply(float* d, const unsigned* a, const unsigned* b) {
    float values[6];
    for (unsigned i = 0; i < 6; ++i) {
        values[i] = __uint_as_float((i < 4 ? a[i] : b[i - 4]) & 0xffffe000u);
    }
    host_multiply_floats(d, values);
}
