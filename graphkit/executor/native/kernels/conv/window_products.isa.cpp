// Products of a gradient with overlapping windows.
//
// A tile of sums, some filters by some vectors of columns, stays in registers for all rows. Windows are read where they
// overlap, without copies: the rows of a wide kernel stay in the first-level cache.
#include "kernels/conv/window_products_table.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

#if defined(__AVX512F__)
constexpr int kTileFilters = 8;
constexpr int kTileVectors = 3;
#else
constexpr int kTileFilters = 6;
constexpr int kTileVectors = 2;
#endif

using Lanes = Vector<float>;
constexpr std::int64_t kWide = kLanes<float>;

template <int Filters, int Vectors>
void add_tile(const WindowProduct& p, std::int64_t filter, std::int64_t column) {
    Lanes sums[Filters][Vectors] = {};
    const float* left = p.left + filter * p.left_filter;
    const float* windows = p.windows + column;
    for (std::int64_t row = 0; row < p.count; ++row, left += p.left_row, windows += p.window_step) {
        Lanes window[Vectors];
        for (int v = 0; v < Vectors; ++v) {
            window[v] = load<float>(windows + v * kWide);
        }
        for (int f = 0; f < Filters; ++f) {
            const Lanes factor = splat(left[f * p.left_filter]);
            for (int v = 0; v < Vectors; ++v) {
                sums[f][v] += factor * window[v];
            }
        }
    }
    for (int f = 0; f < Filters; ++f) {
        float* to = p.sums + (filter + f) * p.sums_step + column;
        for (int v = 0; v < Vectors; ++v) {
            store(to + v * kWide, load<float>(to + v * kWide) + sums[f][v]);
        }
    }
}

template <int Filters, int Vectors>
void add_filters(const WindowProduct& p, std::int64_t column) {
    std::int64_t filter = 0;
    for (; filter + Filters <= p.filters; filter += Filters) {
        add_tile<Filters, Vectors>(p, filter, column);
    }
    for (; filter + 2 <= p.filters; filter += 2) {
        add_tile<2, Vectors>(p, filter, column);
    }
    for (; filter < p.filters; ++filter) {
        add_tile<1, Vectors>(p, filter, column);
    }
}

void add_products(const WindowProduct& p) {
    const std::int64_t columns = (p.columns + kWindowGrain - 1) / kWindowGrain * kWindowGrain;
    std::int64_t column = 0;
    for (; column + kTileVectors * kWide <= columns; column += kTileVectors * kWide) {
        add_filters<kTileFilters, kTileVectors>(p, column);
    }
    for (; column < columns; column += kWide) {
        add_filters<kTileFilters, 1>(p, column);
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(WindowTable, window_table) = {add_products};

}  // namespace graphkit
