// The inner loops of reductions, compiled for several instruction sets.
//
// Each function processes rows in memory, without knowing shapes. Kernels iterate over shapes and share the work among
// threads.
#pragma once

#include <cstdint>
#include <type_traits>

#include "runtime/isa.h"
#include "simd/half.h"

namespace graphkit {

// A reduction maps each element, then combines the results. sum_exp and sum_squares_about subtract a shift first.
enum class Reduction : std::uint8_t {
    sum,
    product,
    largest,
    smallest,
    sum_absolute,
    sum_squares,
    sum_exp,
    sum_squares_about
};
constexpr int kReductions = 8;

// The type in which a reduction over T accumulates. Integers accumulate in 64 bits and wrap around, so that their means
// are exact.
template <typename T>
using Accumulator =
    std::conditional_t<std::is_same_v<T, double>, double,
                       std::conditional_t<!std::is_integral_v<T>, float,
                                          std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>>;

// The largest width that ReductionFunctions::columns accepts.
constexpr std::int64_t kReductionTile = 1024;

// `shift` has one element for each result; reductions without a shift ignore it. If an element is NaN, so are largest
// and smallest.
template <typename T>
struct ReductionFunctions {
    using Acc = Accumulator<T>;
    // out[i] = the reduction of x[i * stride + j] over j < size, for i < rows.
    void (*rows)(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t size, const Acc* shift, Acc* out);
    // out[c] = the reduction of x[r * stride + c] over r < rows, for c < width <= kReductionTile; rows > 0.
    void (*columns)(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t width, const Acc* shift, Acc* out);
};

template <typename T>
using Reductions = ReductionFunctions<T>[kReductions];

struct ReductionTable {
    Reductions<float> f32;
    Reductions<double> f64;
    Reductions<Float16> f16;
    Reductions<BFloat16> bf16;
    Reductions<std::int8_t> i8;
    Reductions<std::uint8_t> u8;
    Reductions<std::int32_t> i32;
    Reductions<std::uint32_t> u32;
    Reductions<std::int64_t> i64;
    Reductions<std::uint64_t> u64;

    template <typename T>
    const ReductionFunctions<T>& reduction(Reduction reduction) const {
        return of<T>()[static_cast<int>(reduction)];
    }

  private:
    template <typename T>
    const Reductions<T>& of() const {
        if constexpr (std::is_same_v<T, float>) {
            return f32;
        } else if constexpr (std::is_same_v<T, double>) {
            return f64;
        } else if constexpr (std::is_same_v<T, Float16>) {
            return f16;
        } else if constexpr (std::is_same_v<T, BFloat16>) {
            return bf16;
        } else if constexpr (std::is_same_v<T, std::int8_t>) {
            return i8;
        } else if constexpr (std::is_same_v<T, std::uint8_t>) {
            return u8;
        } else if constexpr (std::is_same_v<T, std::int32_t>) {
            return i32;
        } else if constexpr (std::is_same_v<T, std::uint32_t>) {
            return u32;
        } else if constexpr (std::is_same_v<T, std::int64_t>) {
            return i64;
        } else {
            static_assert(std::is_same_v<T, std::uint64_t>);
            return u64;
        }
    }
};

GRAPHKIT_ISA_TABLE(ReductionTable, reduction_table);

}  // namespace graphkit
