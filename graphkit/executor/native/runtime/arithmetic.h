// How a thread's floating-point operations round, and what becomes of subnormal numbers. Other libraries change that
// for the threads that they run on; a result must not depend on which thread computed it.
#pragma once

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
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
