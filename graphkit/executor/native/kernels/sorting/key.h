// Integer keys that have the order of the elements. Functions have internal linkage, because several instruction sets
// compile them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "simd/half.h"

namespace graphkit {

// Unsigned integers that are ordered like elements of T.
template <typename T>
using Key = std::conditional_t<sizeof(T) == 1, std::uint8_t,
                               std::conditional_t<sizeof(T) == 2, std::uint16_t,
                                                  std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>>;

namespace {

// The bits of infinity in float16 or bfloat16: larger magnitudes are NaN.
template <typename T>
constexpr int kInfinity = std::is_same_v<T, Float16> ? 0x7c00 : 0x7f80;

// Both zeros have the same key. Every NaN has the largest key, which no floating-point number has.
template <typename T>
inline Key<T> key_of(T x) {
    constexpr Key<T> sign = static_cast<Key<T>>(Key<T>{1} << (8 * sizeof(T) - 1));
    if constexpr (std::is_integral_v<T>) {
        return static_cast<Key<T>>(std::is_signed_v<T> ? static_cast<Key<T>>(x) ^ sign : static_cast<Key<T>>(x));
    } else if constexpr (std::is_floating_point_v<T>) {
        const T value = x + T{0};  // -0 becomes 0
        Key<T> bits;
        __builtin_memcpy(&bits, &value, sizeof bits);
        const Key<T> key = (bits & sign) != 0 ? ~bits : bits | sign;
        return x != x ? static_cast<Key<T>>(-1) : key;
    } else {
        const int magnitude = x.bits & 0x7fff;
        const int value = (x.bits & 0x8000) != 0 ? -magnitude : magnitude;
        return static_cast<Key<T>>(magnitude > kInfinity<T> ? 0xffff : value + 0x8000);
    }
}

// Keys in the order of TopK: smaller keys come first.
template <typename T>
inline Key<T> rank_key(T x, bool largest) {
    return static_cast<Key<T>>(key_of(x) ^ static_cast<Key<T>>(largest ? -1 : 0));
}

}  // namespace
}  // namespace graphkit
