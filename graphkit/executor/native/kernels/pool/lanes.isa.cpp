// Vector functions that pool several planes at once: the lanes of a vector hold the same element of each plane.
#include <cstdint>
#include <limits>

#include "kernels/pool/lanes_table.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

using Floats = Vector<float>;
constexpr std::int64_t kStep = kLanes<float>;

// Combines `Wide` adjacent vectors of a window with `taps` positions, at least one. Taps: the number of positions, or 0
// for any number.
template <int Wide, int Taps, typename Combine>
inline void pool_window(const float* x, std::int64_t taps, std::int64_t step, float* y, Combine combine) {
    Floats results[Wide];
#pragma GCC unroll 4
    for (int i = 0; i < Wide; ++i) {
        results[i] = load(x + i * kStep);
    }
    const std::int64_t count = Taps > 0 ? Taps : taps;
#pragma GCC unroll 2
    for (std::int64_t t = 1; t < count; ++t) {
#pragma GCC unroll 4
        for (int i = 0; i < Wide; ++i) {
            results[i] = combine(results[i], load(x + t * step + i * kStep));
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < Wide; ++i) {
        store(y + i * kStep, results[i]);
    }
}

// Combines one window of lines with `line` floats.
template <int Taps, typename Combine>
inline void pool_line(const float* x, std::int64_t line, std::int64_t taps, std::int64_t step, float* y,
                      Combine combine) {
    constexpr int kWide = 4;
    std::int64_t i = 0;
    for (; i + kWide * kStep <= line; i += kWide * kStep) {
        pool_window<kWide, Taps>(x + i, taps, step, y + i, combine);
    }
    for (; i < line; i += kStep) {
        pool_window<1, Taps>(x + i, taps, step, y + i, combine);
    }
}

// Combines windows along an axis. A window without positions gives `nothing`.
template <typename Combine>
inline void pool_axis(const LanesAxis& axis, float nothing, Combine combine) {
    const std::int64_t line = axis.inner * kStep;
    const std::int64_t step = axis.dilation * line;
    float* y = axis.y;
    for (std::int64_t outer = 0; outer < axis.outer; ++outer) {
        const float* x = axis.x + outer * axis.size * line;
        for (std::int64_t w = 0; w < axis.count; ++w, y += line) {
            const PoolReach window = axis.windows[w];
            const float* from = x + (window.count > 0 ? window.first - axis.origin : 0) * line;
            if (window.count == 2) {
                pool_line<2>(from, line, 2, step, y, combine);
            } else if (window.count == 3) {
                pool_line<3>(from, line, 3, step, y, combine);
            } else if (window.count > 0) {
                pool_line<0>(from, line, window.count, step, y, combine);
            } else {
                for (std::int64_t i = 0; i < line; i += kStep) {
                    store(y + i, splat(nothing));
                }
            }
        }
    }
}

void maximum(const LanesAxis& axis) {
    pool_axis(axis, -std::numeric_limits<float>::infinity(), largest_of);
}

void sum(const LanesAxis& axis) {
    pool_axis(axis, 0.0F, [](Floats a, Floats b) { return a + b; });
}

void divide(const float* divisors, std::int64_t count, float* y) {
    for (std::int64_t i = 0; i < count; ++i, y += kStep) {
        store(y, load(y) / splat(divisors[i]));
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(LanesPoolFunctions, lanes_pool_functions) = {kStep, maximum, sum, divide};

}  // namespace graphkit
