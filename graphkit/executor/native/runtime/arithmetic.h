// The rounding mode of a thread's floating-point operations, and their treatment of subnormal numbers. Other libraries
// change both for the threads that call them, but a result must not depend on the thread that computes it.
#pragma once

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <cstdint>
#else
#include <cfenv>
#endif

namespace graphkit {

#if defined(__x86_64__) || defined(_M_X64)
// MXCSR without its exception flags. The default: all exceptions masked, round to nearest, subnormal numbers kept.
using Arithmetic = unsigned;
constexpr unsigned kExceptionFlags = 0x3f;
constexpr Arithmetic kDefaultArithmetic = 0x1f80;

inline Arithmetic arithmetic() {
    return _mm_getcsr() & ~kExceptionFlags;
}

inline void set_arithmetic(Arithmetic wanted) {
    const unsigned now = _mm_getcsr();
    if ((now & ~kExceptionFlags) != wanted) {
        _mm_setcsr(wanted | (now & kExceptionFlags));
    }
}
#elif defined(__aarch64__)
// FPCR. The default: no traps, round to nearest, subnormal numbers and NaN payloads kept.
using Arithmetic = std::uint64_t;
constexpr Arithmetic kDefaultArithmetic = 0;

inline Arithmetic arithmetic() {
    std::uint64_t now = 0;
    __asm__ volatile("mrs %0, fpcr" : "=r"(now));
    return now;
}

inline void set_arithmetic(Arithmetic wanted) {
    if (arithmetic() != wanted) {
        __asm__ volatile("msr fpcr, %0" : : "r"(wanted) : "memory");
    }
}
#else
// Standard C++ can only set the rounding mode.
using Arithmetic = int;
constexpr Arithmetic kDefaultArithmetic = FE_TONEAREST;

inline Arithmetic arithmetic() {
    return std::fegetround();
}

inline void set_arithmetic(Arithmetic wanted) {
    std::fesetround(wanted);
}
#endif

}  // namespace graphkit
