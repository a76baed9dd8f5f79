// How a thread's floating-point operations round, and what becomes of subnormal numbers. Other libraries change that
// for the threads that they run on; a result must not depend on which thread computed it.
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
// MXCSR but for the flags of exceptions: all masked, to nearest, subnormal numbers as they are.
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
// FPCR: no traps, to nearest, subnormal numbers and NaN as they are.
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
// The standard knows how to round alone.
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
