// Functions that depthwise convolutions share: sums over a line of windows, and the epilogue. For *.isa.cpp only.
#pragma once

#include "kernels/conv/depthwise_table.h"
#include "simd/channels.h"

namespace graphkit {
namespace {

// Applies the epilogue, after the bias was added.
inline Lane finished(Lane x, const DepthwiseFinish& finish) {
    if (finish.slope != 1) {
        x = x < Lane{} ? x * splat(finish.slope) : x;
    }
    return at_most<float>(at_least<float>(x, finish.low), finish.high);
}

// Adds the products of one line of the windows to `Width` adjacent results. The line has `Columns` elements;
// consecutive windows are `Step` elements apart. w: [Columns, channels]. An element of the input is loaded once for all
// windows that contain it.
template <int Columns, int Step, int Width, int Vectors, typename Access>
[[gnu::always_inline]] inline void add_line(const float* from, const float* w, std::int64_t channels,
                                            Lane (&sums)[Width][Vectors], Access access) {
    Lane factors[Columns][Vectors];
#pragma GCC unroll 8
    for (int k = 0; k < Columns; ++k) {
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) {
            factors[k][v] = access.read(w + k * channels + v * kLane);
        }
    }
#pragma GCC unroll 24
    for (int at = 0; at < (Width - 1) * Step + Columns; ++at, from += channels) {
        Lane x[Vectors];
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) {
            // Otherwise, each product would load the element again.
            x[v] = in_register(access.read(from + v * kLane));
        }
#pragma GCC unroll 8
        for (int k = 0; k < Columns; ++k) {
            if (at >= k && (at - k) % Step == 0 && (at - k) / Step < Width) {
#pragma GCC unroll 4
                for (int v = 0; v < Vectors; ++v) {
                    sums[(at - k) / Step][v] += x[v] * factors[k][v];
                }
            }
        }
    }
}

}  // namespace
}  // namespace graphkit
