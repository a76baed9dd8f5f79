// The inner loops of reductions, compiled for several instruction sets.
//
// Each function works on rows that lie in memory and knows no shapes; kernels walk shapes and share work among threads.
#pragma once

#include <cstdint>
#include <type_traits>

#include "simd/half.h"
#include "runtime/isa.h"

namespace graphkit {

// How elements are combined: mapped, then folded. sum_exp and sum_squares_about subtract a shift first.
enum class Fold : std::uint8_t {
    sum, product, largest, smallest, sum_absolute, sum_squares, sum_exp, sum_squares_about
};
constexpr int kFolds = 8;

// What a fold over T accumulates in: integers wrap around as in 64 bits, so that means of them are exact.
template <typename T>
using Accumulator =
    std::conditional_t<std::is_same_v<T, double>, double,
                       std::conditional_t<!std::is_integral_v<T>, float,
                                          std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>>;

// The widest tile that FoldFunctions::columns takes.
constexpr std::int64_t kFoldTile = 1024;

// `shift` has one element for each result; folds without a shift do not use it. NaN wins in largest and smallest.
template <typename T>
struct FoldFunctions {
    using Acc = Accumulator<T>;
    // out[i] = the fold of x[i * stride + j] over j < size, for i < rows.
    void (*rows)(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t size, const Acc* shift, Acc* out);
    // out[c] = the fold of x[r * stride + c] over r < rows, for c < width <= kFoldTile; rows > 0.
    void (*columns)(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t width, const Acc* shift, Acc* out);
};

template <typename T>
using Folds = FoldFunctions<T>[kFolds];

struct FoldTable {
    Folds<float> f32;
    Folds<double> f64;
    Folds<Float16> f16;
    Folds<BFloat16> bf16;
    Folds<std::int8_t> i8;
    Folds<std::uint8_t> u8;
    Folds<std::int32_t> i32;
    Folds<std::uint32_t> u32;
    Folds<std::int64_t> i64;
    Folds<std::uint64_t> u64;

    template <typename T>
    const FoldFunctions<T>& fold(Fold fold) const {
        return of<T>()[static_cast<int>(fold)];
    }

  private:
    template <typename T>
    const Folds<T>& of() const {
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

GRAPHKIT_ISA_TABLE(FoldTable, fold_table);

}  // namespace graphkit
