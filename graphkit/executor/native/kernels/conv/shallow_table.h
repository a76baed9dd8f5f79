// Sums over adjacent windows of images with few channels, compiled for several instruction sets.
#pragma once

#include <cstdint>

#include "kernels/conv/tiled_table.h"
#include "runtime/isa.h"

namespace graphkit {

// Number of products that are summed in one chain.
constexpr std::int64_t kShallowChain = 256;

// The windows of adjacent results, and all filters. Element e of window i is x[offsets[e] + i]; x may be read up to the
// end of a vector of windows.
struct ShallowLine {
    const float* x;
    const std::int64_t* offsets;
    std::int64_t elements;    // of a window
    std::int64_t begin, end;  // the elements that are not in the padding
    const float* w;  // for each group of filters, [elements, filters of the group]
    std::int64_t filters;
    std::int64_t count;
    TiledEpilogue epilogue;  // its residual, and y, [filters, count], begin at the first window
    float* y;
    std::int64_t filter_step;  // floats from filter to filter of y
    bool given;                // y already contains partial sums, with the bias
};

// Lines of windows to be joined into one line. Whole vectors are read and written.
struct ShallowLines {
    const float* x;
    const std::int64_t* offsets;
    std::int64_t elements;
    std::int64_t step;   // floats from line to line of x
    std::int64_t lines;
    std::int64_t count;  // windows of a line
    float* to;           // element e of window i of line l becomes to[e * to_step + l * count + i]
    std::int64_t to_step;
};

// Strides of a line of x to be separated: element p of stride i becomes to[p * to_step + i]. Whole vectors are written.
struct ShallowStrides {
    const float* x;
    std::int64_t stride;  // at most kNarrow
    std::int64_t count;
    float* to;
    std::int64_t to_step;
};

struct ShallowTable {
    std::int64_t lanes;  // of a vector
    std::int64_t group;  // largest number of filters that are computed together
    void (*clear)(float* to, std::int64_t floats);  // a multiple of the lanes of all instruction sets
    void (*separate)(const ShallowStrides& strides);
    void (*join)(const ShallowLines& lines);
    void (*run)(const ShallowLine& line);
};

// Calls body(first filter, filters) for each group.
template <typename Body>
[[gnu::always_inline]] inline void for_each_group(std::int64_t most, std::int64_t filters, Body&& body) {
    const std::int64_t groups = (filters + most - 1) / most;
    for (std::int64_t g = 0; g < groups; ++g) {
        const std::int64_t begin = filters * g / groups;
        body(begin, filters * (g + 1) / groups - begin);
    }
}

GRAPHKIT_ISA_TABLE(ShallowTable, shallow_table);

}  // namespace graphkit
