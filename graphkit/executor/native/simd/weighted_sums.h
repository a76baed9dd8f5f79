// Weighted sums of rows, and of elements of one row.
#pragma once

#include "resample.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

// With a constant number of taps, whose loop the compiler unrolls; Taps 0: any number.
template <typename T, int Taps>
inline void sum_some_rows(const T* const* rows, const T* weights, int given, T* y, std::int64_t size) {
    const int taps = Taps == 0 ? given : Taps;
    std::int64_t j = 0;
    for (; j + kLanes<T> <= size; j += kLanes<T>) {
        Vector<T> sum{};
        for (int t = 0; t < taps; ++t) {
            sum += splat(weights[t]) * load(rows[t] + j);
        }
        store(y + j, sum);
    }
    for (; j < size; ++j) {
        T sum{};
        for (int t = 0; t < taps; ++t) {
            sum += weights[t] * rows[t][j];
        }
        y[j] = sum;
    }
}

template <typename T>
void sum_rows(const T* const* rows, const T* weights, int taps, T* y, std::int64_t size) {
    switch (taps) {
        case 1:
            return sum_some_rows<T, 1>(rows, weights, taps, y, size);
        case 2:
            return sum_some_rows<T, 2>(rows, weights, taps, y, size);
        case 4:
            return sum_some_rows<T, 4>(rows, weights, taps, y, size);
        default:
            return sum_some_rows<T, 0>(rows, weights, taps, y, size);
    }
}

template <typename T, int Taps>
inline void sum_some(const T* x, const std::int32_t* sources, const T* weights, int given, T* y, std::int64_t size) {
    const int taps = Taps == 0 ? given : Taps;
    for (std::int64_t i = 0; i < size; ++i) {
        T sum{};
        for (int t = 0; t < taps; ++t) {
            sum += weights[t * size + i] * x[sources[t * size + i]];
        }
        y[i] = sum;
    }
}

template <typename T>
void sum_row(const T* x, const std::int32_t* sources, const T* weights, int taps, T* y, std::int64_t size) {
    switch (taps) {
        case 1:
            return sum_some<T, 1>(x, sources, weights, taps, y, size);
        case 2:
            return sum_some<T, 2>(x, sources, weights, taps, y, size);
        case 4:
            return sum_some<T, 4>(x, sources, weights, taps, y, size);
        default:
            return sum_some<T, 0>(x, sources, weights, taps, y, size);
    }
}

constexpr ResampleTable kResamples = {sum_rows<float>, sum_row<float>, sum_rows<double>, sum_row<double>};

}  // namespace
}  // namespace graphkit
