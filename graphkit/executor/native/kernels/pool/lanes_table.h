// Pooling of several planes side by side: what the vector code of each instruction set gets, and its functions.
#pragma once

#include <cstdint>

#include "kernels/pool/padded_table.h"
#include "runtime/isa.h"

namespace graphkit {

// Windows along one axis. Arrays are [outer, axis, inner, lanes]; the axis has `size` positions in x, from number
// `origin` of the input on, and `count` in y.
struct LanesAxis {
    const float* x;
    float* y;
    std::int64_t outer;
    std::int64_t size;
    std::int64_t origin;
    std::int64_t inner;
    const PoolReach* windows;  // `count` of them
    std::int64_t count;
    std::int64_t dilation;
};

struct LanesPoolFunctions {
    std::int64_t lanes;  // of a vector
    // NaN wins over numbers. A window without positions gives -infinity.
    void (*maximum)(const LanesAxis& axis);
    void (*sum)(const LanesAxis& axis);
    // y[i, lane] /= divisors[i].
    void (*divide)(const float* divisors, std::int64_t count, float* y);
};

GRAPHKIT_ISA_TABLE(LanesPoolFunctions, lanes_pool_functions);

}  // namespace graphkit
