// Sums over the windows of one plane. The lanes of a vector hold adjacent windows of a line. An element of the input is
// loaded once for all lines of a tile.
#include "kernels/conv/depthwise_planes_table.h"

#include <algorithm>

#include "kernels/conv/finish.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

using Lanes = Vector<float>;
constexpr std::int64_t kWide = kLanes<float>;
constexpr int kRows = 4;
constexpr int kVectors = 2;
static_assert(kVectors * kWide <= kPlaneColumns);

void zero(float* to, std::int64_t count) {
    std::int64_t i = 0;
    for (; i + kWide <= count; i += kWide) {
        store(to + i, Lanes{});
    }
    store_part<float>(to + i, Lanes{}, count - i);
}

void copy(const PlaneLines& lines) {
    float* to = lines.to;
    zero(to, lines.above * lines.to_step);
    to += lines.above * lines.to_step;
    const float* from = lines.x;
    for (std::int64_t line = 0; line < lines.lines; ++line, from += lines.width, to += lines.to_step) {
        zero(to, lines.left);
        float* const place = to + lines.left;
        std::int64_t i = 0;
        for (; i + kWide <= lines.width; i += kWide) {
            store(place + i, load<float>(from + i));
        }
        if (i < lines.width) {
            store_part<float>(place + i, load_part<float>(from + i, lines.width - i, 0), lines.width - i);
        }
        zero(place + lines.width, lines.to_step - lines.left - lines.width);
    }
    zero(to, lines.below * lines.to_step);
}

template <int Rows, int Vectors>
inline void store_tile(const PlaneBand& band, const Lanes (&sums)[Rows][Vectors], std::int64_t row,
                       std::int64_t column) {
    const TiledEpilogue& e = band.epilogue;
    const std::int64_t count = band.columns - column;
    const bool plain = e.residual == nullptr && e.slope == 1;
    float* to = band.y + row * band.columns + column;
    // The loops are unrolled: otherwise the sums would be moved from registers to memory.
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r, to += band.columns) {
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) {
            const std::int64_t some = count - v * kWide;
            if (plain && some >= kWide) {
                store(to + v * kWide, at_most<float>(at_least<float>(sums[r][v], e.low), e.high));
            } else {
                const std::int64_t rest = std::min(some, kWide);
                const float* residual = e.residual + (to - band.y) + v * kWide;
                store_part<float>(to + v * kWide, finished(e, sums[r][v], residual, rest), rest);
            }
        }
    }
}

template <int Kernel, int Rows, int Vectors>
[[gnu::always_inline]] inline void run_tile(const PlaneBand& band, const Lanes (&factors)[Kernel * Kernel],
                                            std::int64_t row, std::int64_t column) {
    Lanes sums[Rows][Vectors];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) {
            sums[r][v] = splat(band.bias);
        }
    }
    const float* from = band.x + row * band.x_step + column;
#pragma GCC unroll 10
    for (int i = 0; i < Rows + Kernel - 1; ++i, from += band.x_step) {
#pragma GCC unroll 7
        for (int j = 0; j < Kernel; ++j) {
            Lanes x[Vectors];
#pragma GCC unroll 2
            for (int v = 0; v < Vectors; ++v) {
                x[v] = in_register(load<float>(from + j + v * kWide));
            }
#pragma GCC unroll 4
            for (int r = 0; r < Rows; ++r) {
                if (i >= r && i - r < Kernel) {
#pragma GCC unroll 2
                    for (int v = 0; v < Vectors; ++v) {
                        sums[r][v] += x[v] * factors[(i - r) * Kernel + j];
                    }
                }
            }
        }
    }
    store_tile(band, sums, row, column);
}

template <int Kernel, int Rows>
__attribute__((noinline)) void run_rows(const PlaneBand& band, const Lanes (&factors)[Kernel * Kernel],
                                        std::int64_t row) {
    std::int64_t column = 0;
    for (; band.columns - column > kWide; column += kVectors * kWide) {
        run_tile<Kernel, Rows, kVectors>(band, factors, row, column);
    }
    if (column < band.columns) {
        run_tile<Kernel, Rows, 1>(band, factors, row, column);
    }
}

template <int Kernel>
void run_windows(const PlaneBand& band) {
    Lanes factors[Kernel * Kernel];
    for (int i = 0; i < Kernel * Kernel; ++i) {
        factors[i] = splat(band.w[i]);
    }
    std::int64_t row = 0;
    for (; row + kRows <= band.rows; row += kRows) {
        run_rows<Kernel, kRows>(band, factors, row);
    }
    switch (band.rows - row) {
        case 1:
            return run_rows<Kernel, 1>(band, factors, row);
        case 2:
            return run_rows<Kernel, 2>(band, factors, row);
        case 3:
            return run_rows<Kernel, 3>(band, factors, row);
        default:
            return;
    }
}

void run(const PlaneBand& band) {
    switch (band.kernel) {
        case 3:
            return run_windows<3>(band);
        case 5:
            return run_windows<5>(band);
        default:
            return run_windows<7>(band);
    }
}

void finish(const PlaneBand& band) {
    for (std::int64_t i = 0; i < band.rows * band.columns; i += kWide) {
        const std::int64_t some = std::min(band.rows * band.columns - i, kWide);
        const Lanes sums = load_part<float>(band.y + i, some, 0) + splat(band.bias);
        store_part<float>(band.y + i, finished(band.epilogue, sums, band.epilogue.residual + i, some), some);
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(DepthwisePlanesTable, depthwise_planes_table) = {copy, run, finish};

}  // namespace graphkit
