// Sums of a few filters over windows whose elements lie in runs, compiled for several instruction sets.
#pragma once

#include <cstdint>

#include "kernels/conv/tiled_table.h"
#include "runtime/isa.h"

namespace graphkit {

// Windows of results side by side. Window i begins at first + i * step and consists of `runs` runs of `run` elements,
// which begin at `offsets` in it.
struct NarrowLine {
    const float* first;
    std::int64_t step;
    const std::int64_t* offsets;
    std::int64_t runs, run;
    const float* w;  // as `NarrowTable::arrange` makes it
    std::int64_t filters;
    std::int64_t count;
    TiledEpilogue epilogue;  // its residual, and y, [count, filters], begin at the first window
    float* y;
};

// Filters as they are given: a run is [columns, channels], and so many floats lie between neighbours.
struct NarrowFilters {
    const float* w;
    std::int64_t channels;
    std::int64_t filter_step, run_step, column_step, channel_step;
};

struct NarrowTable {
    std::int64_t grain;  // elements of a run are arranged for so many at a time
    // The filters of such lines, arranged; whether all of them are finite.
    bool (*arrange)(const NarrowFilters& given, const NarrowLine& shape, float* to);
    // An element of a filter that is arranged.
    float (*element)(const NarrowLine& line, std::int64_t filter, std::int64_t run, std::int64_t element);
    // Stores results from window number `first` on of some filters, given their sums, [windows, filters], and as many
    // biases.
    void (*finish)(const NarrowLine& line, std::int64_t first, std::int64_t windows, std::int64_t filter,
                   std::int64_t filters, const float* sums, const float* biases);
    void (*run)(const NarrowLine& line);
};

GRAPHKIT_ISA_TABLE(NarrowTable, narrow_table);

}  // namespace graphkit
