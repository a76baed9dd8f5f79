// Pooling of several planes at once: arguments and functions of the vector code.
#pragma once

#include <cstdint>

#include "kernels/pool/padded_table.h"
#include "runtime/isa.h"

namespace graphkit {

// Windows along one axis. Arrays are [outer, axis, inner, lanes]. Along the axis, x has `size` positions, and y has
// `count`. The first position of x is position `origin` of the input.
struct LanesAxis {
    const float* x;
    float* y;
    std::int64_t outer;
    std::int64_t size;
    std::int64_t origin;
    std::int64_t inner;
    const PoolReach* windows;  // `count` windows
    std::int64_t count;
    std::int64_t dilation;
};

struct LanesPoolFunctions {
    std::int64_t lanes;  // of a vector
    // If an element is NaN, so is the maximum. A window without positions gives -infinity.
    void (*maximum)(const LanesAxis& axis);
    void (*sum)(const LanesAxis& axis);
    // y[i, lane] /= divisors[i].
    void (*divide)(const float* divisors, std::int64_t count, float* y);
};

GRAPHKIT_ISA_TABLE(LanesPoolFunctions, lanes_pool_functions);

}  // namespace graphkit
