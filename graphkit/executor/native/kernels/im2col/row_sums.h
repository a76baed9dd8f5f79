// Adds rows to the rows of an image; compiled for several instruction sets.
#pragma once

#include <cstdint>
#include <type_traits>

#include "runtime/isa.h"

namespace graphkit {

// y[r * y_row + i * y_step] += x[r * x_row + i] for r < rows, i < length. All these elements of y are different, and x
// does not overlap them.
template <typename T>
struct RowSum {
    T* y;
    std::int64_t y_row, y_step;
    const T* x;
    std::int64_t x_row;
    std::int64_t rows, length;
};

// Integers are computed as unsigned, so that sums wrap around.
struct RowSumTable {
    void (*f32)(const RowSum<float>& sum);
    void (*f64)(const RowSum<double>& sum);
    void (*u32)(const RowSum<std::uint32_t>& sum);
    void (*u64)(const RowSum<std::uint64_t>& sum);

    template <typename T>
    auto of() const {
        if constexpr (std::is_same_v<T, float>) {
            return f32;
        } else if constexpr (std::is_same_v<T, double>) {
            return f64;
        } else if constexpr (std::is_same_v<T, std::uint32_t>) {
            return u32;
        } else {
            return u64;
        }
    }
};

GRAPHKIT_ISA_TABLE(RowSumTable, row_sum_table);

}  // namespace graphkit
