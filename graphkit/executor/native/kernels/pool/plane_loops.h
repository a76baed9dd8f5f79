// Loops over the windows and the taps of a plane.
#pragma once

#include "kernels/pool/pool.h"

namespace graphkit {

// Calls body(offset of the output row, depth, height) for every row of windows in a plane.
template <typename Body>
void for_each_row(const PoolGeometry& g, Body&& body) {
    std::int64_t at = 0;
    for (const Span& depth : g.windows[0]) {
        for (const Span& height : g.windows[1]) {
            body(at, depth, height);
            at += g.row();
        }
    }
}

// For a row of windows, calls body(offset of the input row, tap) for every element of the kernel.
template <typename Body>
void for_each_tap(const PoolGeometry& g, const Span& depth, const Span& height, Body&& body) {
    for (std::int64_t d = depth.first; d < depth.last; ++d) {
        const std::int64_t plane = (depth.start + d * g.dilation[0]) * g.input[1];
        for (std::int64_t h = height.first; h < height.last; ++h) {
            const std::int64_t row = (plane + height.start + h * g.dilation[1]) * g.input[2];
            for (const Tap& tap : g.taps) {
                body(row + tap.offset, tap);
            }
        }
    }
}

// Estimated nanoseconds for one plane.
inline double plane_cost(const PoolGeometry& g) {
    return 0.3 * static_cast<double>(g.output_size() * g.most_inside() + g.input_size());
}

}  // namespace graphkit
