// Pooling along rows of padded copies: what the vector code of each instruction set gets, and its functions.
#pragma once

#include <cstdint>

#include "runtime/isa.h"

namespace graphkit {

// One phase of a row: the elements x[phase], x[phase + stride], ..., stored from `offset` of the padded row on.
struct PaddedPhase {
    std::int64_t phase;
    std::int64_t offset;
};

// The largest stride along rows.
constexpr int kPaddedStride = 8;

// How a row of the input is stored: its phases one behind the other, each between elements that are padding. Windows
// side by side then read neighbouring elements, for any stride and dilation.
struct PaddedLayout {
    std::int64_t width;   // of the input
    std::int64_t stride;  // of the windows
    std::int64_t row;     // elements of a padded row
    std::int64_t phase_count;
    const PaddedPhase* phases;  // those that a window reads
    std::int64_t columns;       // windows of a row
    std::int64_t taps;          // elements that a window reads of a row
    // Where the first window of a row reads, from the first of its padded rows on: `taps` numbers for each of these.
    const std::int64_t* offsets;
};

// The rows of the input that a row of windows reads at one depth: `count` rows from `height` on.
struct PaddedHeights {
    std::int64_t height;
    std::int64_t count;
};

// Rows of windows at one depth: `count` rows of y, which is written as a whole.
struct PaddedWindows {
    const float* rows;  // at the first depth that they read: of the input for maxima, of its copy for means
    std::int64_t first_height;  // of the copy
    const PaddedHeights* heights;  // of each row of windows
    std::int64_t count;  // rows of windows
    std::int64_t row_step;  // elements between the rows that a window reads
    std::int64_t depths;  // that they read
    std::int64_t depth_step;  // elements between these
    float* padded;  // for maxima: working memory of `count` padded rows, whose padding is -infinity
    const std::int64_t* divisor_rows;  // for means: which row of divisors belongs to each row of windows
    const float* divisors;  // rows of `columns` elements, rounded up to whole vectors
};

struct PaddedPoolFunctions {
    std::int64_t lanes;  // of a vector
    void (*maximum)(const PaddedLayout& layout, const PaddedWindows& windows, float* y);
    // Copies `rows` neighbouring rows into padded ones, for means. Behind the elements of a phase, up to a whole number
    // of vectors, it writes zeros.
    void (*copy)(const PaddedLayout& layout, const float* x, std::int64_t rows, float* padded);
    void (*mean)(const PaddedLayout& layout, const PaddedWindows& windows, float* y);
};

GRAPHKIT_ISA_TABLE(PaddedPoolFunctions, padded_pool_functions);

}  // namespace graphkit
