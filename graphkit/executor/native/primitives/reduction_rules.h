// The rules of reductions: how elements are mapped and combined. For *.isa.cpp only.
#pragma once

#include <limits>

#include "simd/exp.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

template <typename T>
struct Limit {
    static constexpr T kLowest = std::numeric_limits<T>::lowest();
    static constexpr T kHighest = std::numeric_limits<T>::max();
};
template <>
struct Limit<float> {
    static constexpr float kLowest = -std::numeric_limits<float>::infinity();
    static constexpr float kHighest = std::numeric_limits<float>::infinity();
};
template <>
struct Limit<double> {
    static constexpr double kLowest = -std::numeric_limits<double>::infinity();
    static constexpr double kHighest = std::numeric_limits<double>::infinity();
};

// Elements are combined as they are.
struct Unmapped {
    template <typename V>
    static V map(V x, V) {
        return x;
    }
};

// kStart is the neutral element; `map` maps an element kFill to it.
template <typename T>
struct SumReduction : Add, Unmapped {
    static constexpr T kStart = 0, kFill = 0;
};

template <typename T>
struct ProductReduction : Multiply, Unmapped {
    static constexpr T kStart = 1, kFill = 1;
};

template <typename T>
struct LargestReduction : Largest, Unmapped {
    static constexpr T kStart = Limit<T>::kLowest, kFill = kStart;
};

template <typename T>
struct SmallestReduction : Smallest, Unmapped {
    static constexpr T kStart = Limit<T>::kHighest, kFill = kStart;
};

template <typename T>
struct AbsoluteReduction : Add {
    static constexpr T kStart = 0, kFill = 0;
    template <typename V>
    static V map(V x, V) {
        return x < 0 ? -x : x;
    }
};

template <typename T>
struct SquareReduction : Add {
    static constexpr T kStart = 0, kFill = 0;
    template <typename V>
    static V map(V x, V) {
        return x * x;
    }
};

template <typename T>
struct ExpReduction : Add {
    static constexpr T kStart = 0, kFill = Limit<T>::kLowest;
    static Vector<T> map(Vector<T> x, Vector<T> shift) { return exp<T>(x - shift); }
};

// `map` maps an element that equals the shift to 0.
template <typename T>
struct SquareAboutReduction : Add {
    static constexpr T kStart = 0, kFill = 0;
    static Vector<T> map(Vector<T> x, Vector<T> shift) { return (x - shift) * (x - shift); }
};

}  // namespace
}  // namespace graphkit
