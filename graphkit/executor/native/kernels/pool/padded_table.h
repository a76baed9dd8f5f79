// Pooling along padded rows: what the vector code of each instruction set gets, and its functions.
#pragma once

#include <cstdint>

#include "runtime/isa.h"

namespace graphkit {

// The largest stride along rows.
constexpr int kPaddedStride = 8;

// One phase of a row: the elements x[phase], x[phase + stride], ..., stored from `offset` of the padded row on.
struct PaddedPhase {
    std::int64_t phase;
    std::int64_t offset;
};

// How a row is stored: its phases one behind the other, each between elements that are padding. Windows side by side
// then read neighbouring elements, for any stride and dilation.
struct PaddedLayout {
    std::int64_t width;   // of the input
    std::int64_t stride;  // of the windows
    std::int64_t row;     // elements of a padded row
    std::int64_t phase_count;
    const PaddedPhase* phases;    // those that a window reads
    std::int64_t columns;         // windows of a row
    std::int64_t taps;            // elements that a window reads of a row
    const std::int64_t* offsets;  // of these from the start of the row, for the first window
};

// What a window reads along one axis of the input: `count` positions from `first` on, a dilation apart.
struct PoolReach {
    std::int64_t first;
    std::int64_t count;
};

// Rows of windows at one depth: `count` rows of y, which is written as a whole.
struct PaddedWindows {
    const float* x;                // the first depth that they read
    const PoolReach* heights;  // of each row of windows
    std::int64_t count;            // rows of windows
    std::int64_t row_step;         // elements between the rows that a window reads
    std::int64_t depths;           // that they read
    std::int64_t depth_step;       // elements between these
    float* padded;  // working memory of `count` padded rows, whose padding is -infinity for maxima, 0 for means
    const std::int64_t* divisor_rows;  // for means: which row of divisors belongs to each row of windows
    const float* divisors;             // rows of `columns` elements, rounded up to whole vectors
};

struct PaddedPoolFunctions {
    std::int64_t lanes;  // of a vector
    void (*maximum)(const PaddedLayout& layout, const PaddedWindows& windows, float* y);
    void (*mean)(const PaddedLayout& layout, const PaddedWindows& windows, float* y);
};

GRAPHKIT_ISA_TABLE(PaddedPoolFunctions, padded_pool_functions);

}  // namespace graphkit
