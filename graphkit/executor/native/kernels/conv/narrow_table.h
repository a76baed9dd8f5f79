// Sums of a few filters over windows that consist of contiguous runs, compiled for several instruction sets.
#pragma once

#include <cstdint>

#include "kernels/conv/tiled_table.h"
#include "runtime/isa.h"

namespace graphkit {

// The windows of adjacent results. Window i begins at first + i * step and has `runs` runs of `run` elements, at these
// `offsets`.
struct NarrowLine {
    const float* first;
    std::int64_t step;
    const std::int64_t* offsets;
    std::int64_t runs, run;
    const float* w;  // arranged by `NarrowTable::arrange`
    std::int64_t filters;
    std::int64_t count;
    TiledEpilogue epilogue;  // its residual, and y, [count, filters], begin at the first window
    float* y;
};

// Filters in their original layout. A run is [columns, channels]; the steps are the floats between neighbours along
// each axis.
struct NarrowFilters {
    const float* w;
    std::int64_t channels;
    std::int64_t filter_step, run_step, column_step, channel_step;
};

struct NarrowTable {
    std::int64_t grain;  // arranged runs are padded to a multiple of this number of elements
    // Arranges the filters for such lines. Returns whether all of them are finite.
    bool (*arrange)(const NarrowFilters& given, const NarrowLine& shape, float* to);
    // Returns an element of an arranged filter.
    float (*element)(const NarrowLine& line, std::int64_t filter, std::int64_t run, std::int64_t element);
    // Stores the results of `windows` windows from number `first` on, for some filters, from their sums [windows,
    // filters] and as many biases.
    void (*finish)(const NarrowLine& line, std::int64_t first, std::int64_t windows, std::int64_t filter,
                   std::int64_t filters, const float* sums, const float* biases);
    void (*run)(const NarrowLine& line);
};

GRAPHKIT_ISA_TABLE(NarrowTable, narrow_table);

}  // namespace graphkit
