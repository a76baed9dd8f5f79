// CUDA's words on a processor: a launch is a loop over blocks, a block a loop over threads, which are fibers where they
// wait for each other. `host_order` 1 runs them the other way round: what depends on that has forgotten a barrier.
#pragma once

// It has few words: a compiler reads all of them again for every library.
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

struct HostIndex {
    unsigned x, y, z;
};
static thread_local HostIndex threadIdx, blockIdx, blockDim, gridDim;

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

// Of a conditional node, whose handle is where its value lies.
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

enum HostState { HOST_READY, HOST_AT_BLOCK, HOST_AT_WARP, HOST_DONE };
const unsigned kHostStack = 1 << 16, kHostWarp = 32;

struct HostFiber {
    ucontext_t beginning;
    jmp_buf place;  // where it goes on, once it has begun
    bool has_begun;
    HostState state;
    alignas(16) unsigned char slot[32];  // what it gives to the other threads of its warp
};

// A kernel with its arguments.
typedef void (*HostBody)(void** arguments);

static HostFiber* host_fibers = nullptr;
static unsigned char* host_stacks = nullptr;
static unsigned host_threads = 0;  // that have a stack
static jmp_buf host_scheduler;
static HostBody host_body;
static void** host_arguments;
static int host_order = 0;

// Jumps, which ask the system for nothing: contexts alone would, at every turn.
static void host_wait(HostState state) {
    HostFiber& self = host_fibers[threadIdx.x];
    self.state = state;
    if (_setjmp(self.place) == 0) {
        _longjmp(host_scheduler, 1);
    }
}
static void host_go_on(HostFiber& fiber) {
    if (_setjmp(host_scheduler) != 0) {
        return;
    }
    if (fiber.has_begun) {
        _longjmp(fiber.place, 1);
    }
    fiber.has_begun = true;
    setcontext(&fiber.beginning);
}
static inline void __syncthreads() { host_wait(HOST_AT_BLOCK); }

template <typename T>
static T __shfl_xor_sync(unsigned, T x, int far) {
    const unsigned self = threadIdx.x;
    memcpy(host_fibers[self].slot, &x, sizeof x);
    host_wait(HOST_AT_WARP);
    T other;
    memcpy(&other, host_fibers[self ^ (unsigned)far].slot, sizeof other);
    host_wait(HOST_AT_WARP);
    return other;
}

template <typename T>
static T __shfl_up_sync(unsigned, T x, int far) {
    const unsigned self = threadIdx.x, lane = self % kHostWarp;
    memcpy(host_fibers[self].slot, &x, sizeof x);
    host_wait(HOST_AT_WARP);
    T other;
    memcpy(&other, host_fibers[lane < (unsigned)far ? self : self - (unsigned)far].slot, sizeof other);
    host_wait(HOST_AT_WARP);
    return other;
}

// The lanes whose x is that of the thread.
static inline unsigned __match_any_sync(unsigned, unsigned x) {
    const unsigned self = threadIdx.x, first = self / kHostWarp * kHostWarp;
    memcpy(host_fibers[self].slot, &x, sizeof x);
    host_wait(HOST_AT_WARP);
    unsigned found = 0;
    for (unsigned lane = 0; lane < kHostWarp; ++lane) {
        found |= (unsigned)(memcmp(host_fibers[first + lane].slot, &x, sizeof x) == 0) << lane;
    }
    host_wait(HOST_AT_WARP);
    return found;
}

// d += a b of a warp, sums of so many terms, by the four words of `a` and the two of `b` that each lane has. value: of a
// row (of b, a column, in the words from the fourth on) at a term, by a function that reads a lane's words.
template <typename Value>
static void host_multiply(float* d, const unsigned* a, const unsigned* b, unsigned terms, Value value) {
    const unsigned self = threadIdx.x, first = self / kHostWarp * kHostWarp, lane = self % kHostWarp;
    memcpy(host_fibers[self].slot, a, 16);
    memcpy(host_fibers[self].slot + 16, b, 8);
    host_wait(HOST_AT_WARP);
    const auto words = [&](unsigned of_lane) { return host_fibers[first + of_lane].slot; };
    for (unsigned i = 0; i < 4; ++i) {
        const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (unsigned k = 0; k < terms; ++k) {
            d[i] += value(words, row % 8, row / 8, 2, k) * value(words, column, 4, 1, k);
        }
    }
    host_wait(HOST_AT_WARP);
}

// As PTX's mma.m16n8k16 has its operands; half: the float of a half float's bits.
template <typename Half>
static void gk_host_multiply(float* d, const unsigned* a, const unsigned* b, Half half) {
    host_multiply(d, a, b, 16, [&](auto words, unsigned line, unsigned word, unsigned step, unsigned k) {
        unsigned short bits;
        memcpy(&bits, words(line * 4 + k % 8 / 2) + (word + k / 8 * step) * 4 + k % 2 * 2, sizeof bits);
        return half(bits);
    });
}

// As mma.m16n8k8 has them, but for the order of the terms, by the leading 11 bits of floats.
static void gk_host_multiply(float* d, const unsigned* a, const unsigned* b) {
    host_multiply(d, a, b, 8, [](auto words, unsigned line, unsigned word, unsigned step, unsigned k) {
        unsigned bits;
        memcpy(&bits, words(line * 4 + k / 2) + (word + k % 2 * step) * 4, sizeof bits);
        bits &= 0xffffe000u;
        float number;
        memcpy(&number, &bits, sizeof number);
        return number;
    });
}

static void host_fiber() {
    host_body(host_arguments);
    host_fibers[threadIdx.x].state = HOST_DONE;
    _longjmp(host_scheduler, 1);
}

// Lets those go on that may; false where threads wait for others that never come.
static bool host_release(unsigned threads) {
    bool released = false, finished = true, together = true;
    for (unsigned first = 0; first < threads; first += kHostWarp) {
        unsigned waiting = 0;
        const unsigned lanes = threads - first < kHostWarp ? threads - first : kHostWarp;
        for (unsigned i = first; i < first + lanes; ++i) {
            waiting += host_fibers[i].state == HOST_AT_WARP;
            finished = finished && host_fibers[i].state == HOST_DONE;
            together = together && host_fibers[i].state == HOST_AT_BLOCK;
        }
        if (waiting == kHostWarp) {
            for (unsigned i = first; i < first + lanes; ++i) {
                host_fibers[i].state = HOST_READY;
            }
            released = true;
        } else if (waiting != 0) {
            return false;
        }
    }
    for (unsigned i = 0; together && i < threads; ++i) {
        host_fibers[i].state = HOST_READY;
    }
    return released || together || finished;
}

static bool host_block(unsigned threads) {
    if (threads > host_threads) {
        free(host_fibers);
        free(host_stacks);
        host_fibers = (HostFiber*)malloc(threads * sizeof(HostFiber));
        host_stacks = (unsigned char*)malloc((size_t)threads * kHostStack);
        if (host_fibers == nullptr || host_stacks == nullptr) {
            abort();
        }
        host_threads = threads;
    }
    for (unsigned i = 0; i < threads; ++i) {
        HostFiber& fiber = host_fibers[i];
        getcontext(&fiber.beginning);
        fiber.beginning.uc_stack.ss_sp = host_stacks + (size_t)i * kHostStack;
        fiber.beginning.uc_stack.ss_size = kHostStack;
        fiber.has_begun = false;
        fiber.state = HOST_READY;
        makecontext(&fiber.beginning, host_fiber, 0);
    }
    for (unsigned done = 0; done < threads;) {
        done = 0;
        for (unsigned i = 0; i < threads; ++i) {
            const unsigned thread = host_order == 0 ? i : threads - 1 - i;
            if (host_fibers[thread].state == HOST_READY) {
                threadIdx = {thread, 0, 0};
                host_go_on(host_fibers[thread]);
            }
        }
        for (unsigned i = 0; i < threads; ++i) {
            done += host_fibers[i].state == HOST_DONE;
        }
        if (!host_release(threads)) {
            return false;
        }
    }
    return true;
}

// 0, or 1 where threads wait for others that never come. waits: whether threads may wait for each other at all.
static int host_launch(unsigned blocks, unsigned threads, int order, bool waits, HostBody body, void** arguments) {
    gridDim = {blocks, 1, 1};
    blockDim = {threads, 1, 1};
    host_order = order;
    host_body = body;
    host_arguments = arguments;
    for (unsigned block = 0; block < blocks; ++block) {
        blockIdx = {block, 0, 0};
        if (waits) {
            if (!host_block(threads)) {
                return 1;
            }
            continue;
        }
        for (unsigned thread = 0; thread < threads; ++thread) {
            threadIdx = {thread, 0, 0};
            body(arguments);
        }
    }
    return 0;
}
