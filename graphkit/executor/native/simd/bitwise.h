// Whether any bit of a vector is set. For *.isa.cpp only.
#pragma once

#include "simd/vector.h"

namespace graphkit {
namespace {

struct BitwiseOr {
    template <typename V>
    static V combine(V a, V b) {
        return a | b;
    }
};

template <typename T>
inline bool any_bit(Vector<T> v) {
    return across<BitwiseOr, T>(v) != 0;
}

}  // namespace
}  // namespace graphkit
