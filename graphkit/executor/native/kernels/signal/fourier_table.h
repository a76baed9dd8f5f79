// One stage of a Fourier transform, compiled for several instruction sets.
#pragma once

#include <cstdint>

#include "runtime/isa.h"

namespace graphkit {

// The largest supported radix.
constexpr int kWidestRadix = 31;

// Complex numbers as two arrays.
template <typename T>
struct Complex {
    T* re;
    T* im;
};

// A stage of Stockham's algorithm (1966), with decimation in frequency, from x, [radix, groups, stride], to y, [groups,
// radix, stride]. Each column gets one butterfly and one turn by `turns`, [radix - 1, groups]. `roots` are exp(-2 pi i
// k / radix) for k < radix.
template <typename T>
struct FourierStage {
    int radix;
    std::int64_t groups;
    std::int64_t stride;
    const T* turn_re;
    const T* turn_im;
    const T* root_re;
    const T* root_im;
};

struct FourierTable {
    void (*run_f32)(const FourierStage<float>& stage, Complex<float> x, Complex<float> y);
    void (*run_f64)(const FourierStage<double>& stage, Complex<double> x, Complex<double> y);
    // x *= by, where each of the `length` elements of `by` applies to `lanes` columns.
    void (*multiply_f32)(Complex<float> x, Complex<float> by, std::int64_t length, std::int64_t lanes);
    void (*multiply_f64)(Complex<double> x, Complex<double> by, std::int64_t length, std::int64_t lanes);
};

GRAPHKIT_ISA_TABLE(FourierTable, fourier_table);

}  // namespace graphkit
