// The sticky "invalid operation" flag of each thread. It is set by 0 * inf, inf - inf, and by a NaN in a comparison, a
// minimum or a maximum.
#pragma once

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace graphkit {

#if defined(__x86_64__) || defined(_M_X64)
constexpr unsigned kInvalidBit = 1;

inline bool invalid_raised() {
    return (_mm_getcsr() & kInvalidBit) != 0;
}

inline void set_invalid(bool raised) {
    const unsigned flags = _mm_getcsr();
    const unsigned wanted = raised ? flags | kInvalidBit : flags & ~kInvalidBit;
    if (wanted != flags) {
        _mm_setcsr(wanted);
    }
}
#else
inline bool invalid_raised() {
    return std::fetestexcept(FE_INVALID) != 0;
}

inline void set_invalid(bool raised) {
    if (raised) {
        std::feraiseexcept(FE_INVALID);
    } else {
        std::feclearexcept(FE_INVALID);
    }
}
#endif

// Restores the thread's flag when it is destroyed.
class KeptFlag {
  public:
    KeptFlag() : raised_(invalid_raised()) {}
    ~KeptFlag() { set_invalid(raised_); }
    KeptFlag(const KeptFlag&) = delete;
    KeptFlag& operator=(const KeptFlag&) = delete;

  private:
    bool raised_;
};

}  // namespace graphkit
