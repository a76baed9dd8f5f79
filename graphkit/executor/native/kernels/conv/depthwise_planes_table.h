// Sums over windows of one plane, compiled for several instruction sets.
#pragma once

#include <cstdint>

#include "kernels/conv/tiled_table.h"
#include "runtime/isa.h"

namespace graphkit {

// Lines of a plane that are copied with zeros around them.
struct PlaneLines {
    const float* x;  // the first line
    std::int64_t width;
    std::int64_t left;   // zeros before each line
    std::int64_t above;  // lines of zeros before the first line, and behind the last one
    std::int64_t lines;
    std::int64_t below;
    float* to;
    std::int64_t to_step;  // floats from line to line, including zeros behind each line
};

// Adjacent lines of the result of one plane. Windows are `kernel` x `kernel`, and adjacent.
struct PlaneBand {
    const float* x;  // the line and column of the first window, in a copy that is readable up to whole tiles of columns
    std::int64_t x_step;
    const float* w;  // [kernel, kernel]
    std::int64_t kernel;
    std::int64_t rows, columns;
    float bias;
    TiledEpilogue epilogue;  // its residual, and y, [rows, columns], begin at the first result; its bias is not read
    float* y;
};

struct DepthwisePlanesTable {
    void (*copy)(const PlaneLines& lines);
    void (*run)(const PlaneBand& band);
    // Adds the bias to sums in y, and applies the epilogue.
    void (*finish)(const PlaneBand& band);
};

// The largest number of columns of a tile, for any instruction set.
constexpr std::int64_t kPlaneColumns = 32;

GRAPHKIT_ISA_TABLE(DepthwisePlanesTable, depthwise_planes_table);

}  // namespace graphkit
