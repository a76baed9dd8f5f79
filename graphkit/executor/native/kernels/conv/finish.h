// The epilogue of a vector of adjacent results. For *.isa.cpp only.
#pragma once

#include "kernels/conv/tiled_table.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

// Applies the epilogue to the first `count` lanes, after the bias was added. `residual` belongs to the first lane; it
// is not read if the epilogue has none.
inline Vector<float> finished(const TiledEpilogue& e, Vector<float> x, const float* residual, std::int64_t count) {
    const bool adds = e.residual != nullptr;
    const Vector<float> other = adds ? splat(e.weight) * load_part<float>(residual, count, 0) : Vector<float>{};
    if (adds && !e.residual_last) {
        x += other;
    }
    if (e.slope != 1) {
        x = x < Vector<float>{} ? x * splat(e.slope) : x;
    }
    x = at_most<float>(at_least<float>(x, e.low), e.high);
    return adds && e.residual_last ? x + other : x;
}

}  // namespace
}  // namespace graphkit
