// The products of a transposed convolution, and their sums, compiled for several instruction sets.
#pragma once

#include <cstdint>

#include "runtime/isa.h"

namespace graphkit {

// products [count, floats] = elements of x, [count, channels], times the taps of some filters. The taps are in blocks,
// [channels, block]; if at most half a block is left, the last one is [channels, block / 2].
struct TransposedProduct {
    const float* x;
    std::int64_t count, channels;
    const float* taps;  // for `floats`, rounded up to half a block
    std::int64_t floats;
    float* products;  // nothing is written beyond them
};

// A line of the result. Each column is the bias plus the sum of the products at rows[r] + offset, for all rows and the
// offsets from begins[column] to begins[column + 1]. `left_out` floats of the first column are skipped, and so is what
// exceeds `floats` in the last one.
struct TransposedLine {
    const float* const* rows;
    std::int64_t row_count;
    const std::int64_t* offsets;
    const std::int64_t* begins;
    std::int64_t columns;
    std::int64_t filters;  // floats of a column: one block at most
    const float* bias;  // null: none
    float* y;
    std::int64_t floats;
    std::int64_t left_out;
    std::int64_t step;  // floats from one column to the next
};

struct TransposedTable {
    std::int64_t block;  // floats that are computed together: two vectors
    std::int64_t count;  // elements that fill the registers
    void (*multiply)(const TransposedProduct& product);
    void (*add_up)(const TransposedLine& line);
};

GRAPHKIT_ISA_TABLE(TransposedTable, transposed_table);

}  // namespace graphkit
