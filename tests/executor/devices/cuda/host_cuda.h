// CUDA's words on a processor: a launch is a loop over blocks, a block a loop over threads.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

struct HostIndex {
    unsigned x, y, z;
};
static thread_local HostIndex threadIdx, blockIdx, blockDim, gridDim;

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)

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
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }

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

template <typename Body>
static void host_launch(unsigned blocks, unsigned threads, Body body) {
    gridDim = {blocks, 1, 1};
    blockDim = {threads, 1, 1};
    for (unsigned block = 0; block < blocks; ++block) {
        for (unsigned thread = 0; thread < threads; ++thread) {
            blockIdx = {block, 0, 0};
            threadIdx = {thread, 0, 0};
            body();
        }
    }
}
