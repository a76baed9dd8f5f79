// Products of a gradient with windows that overlap in memory, compiled for several instruction sets.
#pragma once

#include <cstdint>

#include "runtime/isa.h"

namespace graphkit {

// Columns are read and written in multiples of this.
constexpr std::int64_t kWindowGrain = 16;

// left [count, filters], windows [count, columns], which may overlap, and sums [filters, columns]. The steps are the
// floats between neighbours: along both axes of `left`, and along the rows of `windows` and `sums`.
struct WindowProduct {
    const float* left;
    const float* windows;
    float* sums;
    std::int64_t count, filters, columns;
    std::int64_t left_row, left_filter;
    std::int64_t window_step, sums_step;
};

struct WindowTable {
    // sums += left^T windows. The terms of one call are summed before they are added.
    void (*add)(const WindowProduct& product);
};

GRAPHKIT_ISA_TABLE(WindowTable, window_table);

}  // namespace graphkit
