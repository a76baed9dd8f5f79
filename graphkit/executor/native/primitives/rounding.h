// Integers rounded up. Not for *.isa.cpp.
#pragma once

#include <cstdint>

namespace graphkit {

// Floats of the longest vector of all instruction sets.
constexpr std::int64_t kLongestVector = 16;

// a / b, rounded up; a >= 0, b > 0.
inline std::int64_t divide_up(std::int64_t a, std::int64_t b) {
    return (a + b - 1) / b;
}

inline std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
    return divide_up(value, multiple) * multiple;
}

}  // namespace graphkit
