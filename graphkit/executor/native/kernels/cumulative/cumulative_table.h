// Running totals along an axis that is not the last one, compiled for several instruction sets.
#pragma once

#include <cstdint>

#include "runtime/isa.h"

namespace graphkit {

// Functions on `columns` adjacent columns of `size` > 0 elements, `stride` elements apart. Element i of y is the sum
// (or the product) of the elements of x up to i, in order.
template <typename T>
struct CumulativeFunctions {
    void (*sums)(const T* x, T* y, std::int64_t size, std::int64_t stride, std::int64_t columns);
    void (*products)(const T* x, T* y, std::int64_t size, std::int64_t stride, std::int64_t columns);
};

struct CumulativeTable {
    CumulativeFunctions<float> f32;
    CumulativeFunctions<double> f64;
};

GRAPHKIT_ISA_TABLE(CumulativeTable, cumulative_table);

}  // namespace graphkit
