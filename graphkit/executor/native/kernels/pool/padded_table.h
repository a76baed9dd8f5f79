// Pooling along padded rows: arguments and functions of the vector code.
#pragma once

#include <cstdint>

#include "runtime/isa.h"

namespace graphkit {

// The largest supported stride along rows.
constexpr int kPaddedStride = 8;

// One phase of a row: the elements x[phase], x[phase + stride], ... They are stored at `offset` of the padded row.
struct PaddedPhase {
    std::int64_t phase;
    std::int64_t offset;
};

// The layout of a padded row: its phases one after the other, each with padding on both sides. Adjacent windows then
// read adjacent elements, for any stride and dilation.
struct PaddedLayout {
    std::int64_t width;   // of the input
    std::int64_t stride;  // of the windows
    std::int64_t row;     // elements of a padded row
    std::int64_t phase_count;
    const PaddedPhase* phases;    // the phases that windows read
    std::int64_t columns;         // windows of a row
    std::int64_t taps;            // elements of a row that a window reads
    const std::int64_t* offsets;  // offsets of these elements in the padded row, for the first window
};

// The positions that a window reads along one axis of the input: `count` positions from `first` on, a dilation apart.
struct PoolReach {
    std::int64_t first;
    std::int64_t count;
};

// Rows of windows at one depth. All `count` rows of y are written.
struct PaddedWindows {
    const float* x;                // the first depth that the windows read
    const PoolReach* heights;  // for each row of windows
    std::int64_t count;            // rows of windows
    std::int64_t row_step;         // elements between the rows that a window reads
    std::int64_t depths;           // number of depths that the windows read
    std::int64_t depth_step;       // elements between these depths
    float* padded;  // memory of `count` padded rows; its padding is -infinity for maxima, 0 for means
    const std::int64_t* divisor_rows;  // for means: the row of `divisors` for each row of windows
    const float* divisors;             // rows of `columns` elements, rounded up to whole vectors
};

struct PaddedPoolFunctions {
    std::int64_t lanes;  // of a vector
    void (*maximum)(const PaddedLayout& layout, const PaddedWindows& windows, float* y);
    void (*mean)(const PaddedLayout& layout, const PaddedWindows& windows, float* y);
};

GRAPHKIT_ISA_TABLE(PaddedPoolFunctions, padded_pool_functions);

}  // namespace graphkit
