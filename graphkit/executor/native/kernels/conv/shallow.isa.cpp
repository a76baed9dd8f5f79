// Sums over windows of images with few channels. The lanes of a vector hold adjacent windows; each element of a filter
// is multiplied by all of them.
#include <algorithm>
#include <utility>

#include "kernels/conv/finish.h"
#include "kernels/conv/shallow_table.h"
#include "simd/narrow_rows.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

using Lanes = Vector<float>;
constexpr std::int64_t kWide = kLanes<float>;
constexpr int kVectors = 2;
// With at most kFewRows filters, more vectors of windows are needed to fill the registers with sums.
constexpr int kManyVectors = 4;
#if defined(__AVX512F__)
constexpr int kGroup = 14;
constexpr int kFewRows = 6;
#else
constexpr int kGroup = 6;
constexpr int kFewRows = 2;
#endif
constexpr std::int64_t kLongWindow = 128;

// A tile of results, and the range of elements that are added to it.
struct Tile {
    std::int64_t filter, window;
    std::int64_t begin, end;
    const float* w;  // weights of the group of filters
};

// The last vector contains at least one window.
template <int Rows, int Vectors>
__attribute__((noinline)) void run_tile(const ShallowLine& line, const Tile& tile) {
    const bool starts = tile.begin == line.begin && !line.given;
    Lanes sums[Rows][Vectors];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
        const float* bias = starts ? line.epilogue.bias : nullptr;
        const Lanes first = bias == nullptr ? Lanes{} : splat(bias[tile.filter + r]);
        for (int v = 0; v < Vectors; ++v) {
            sums[r][v] = first;
        }
    }
    const float* w = tile.w + tile.begin * Rows;
    for (std::int64_t e = tile.begin; e < tile.end; ++e, w += Rows) {
        const float* from = line.x + line.offsets[e] + tile.window;
        Lanes elements[Vectors];
        for (int v = 0; v < Vectors; ++v) {
            elements[v] = load<float>(from + v * kWide);
        }
        for (int r = 0; r < Rows; ++r) {
            const Lanes factor = splat(w[r]);
            for (int v = 0; v < Vectors; ++v) {
                sums[r][v] += elements[v] * factor;
            }
        }
    }
    const bool ends = tile.end == line.end;
    const TiledEpilogue& e = line.epilogue;
    const bool plain = e.residual == nullptr && e.slope == 1;
    const std::int64_t count = line.count - tile.window;
    const std::int64_t begin = tile.filter * line.filter_step + tile.window;
    // The loops are unrolled: otherwise the sums would be moved from registers to memory.
    if (starts && ends && plain) {
        const Lanes low = splat(e.low);
        const Lanes high = splat(e.high);
        const std::int64_t last = count - (Vectors - 1) * kWide;
        float* to = line.y + begin;
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r, to += line.filter_step) {
            for (int v = 0; v < Vectors; ++v) {
                const Lanes x = min_of<float>(max_of<float>(sums[r][v], low), high);
                if (v < Vectors - 1 || last >= kWide) {
                    store(to + v * kWide, x);
                } else {
                    store_part<float>(to + v * kWide, x, last);
                }
            }
        }
        return;
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
        for (int v = 0; v < Vectors && v * kWide < count; ++v) {
            const std::int64_t some = std::min(count - v * kWide, kWide);
            const std::int64_t at = begin + r * line.filter_step + v * kWide;
            Lanes x = sums[r][v];
            if (!starts) {
                x += load_part<float>(line.y + at, some, 0);
            }
            store_part<float>(line.y + at, ends ? finished(e, x, e.residual + at, some) : x, some);
        }
    }
}

using RunTile = void (*)(const ShallowLine&, const Tile&);

template <int Vectors, int... Less>
RunTile some_rows(std::int64_t rows, std::integer_sequence<int, Less...>) {
    static constexpr RunTile all[] = {run_tile<Less + 1, Vectors>...};
    return all[rows - 1];
}

// Adds the products of some elements with a group of filters, for at most `vectors` vectors of windows from number
// `window` on.
void run_some(const ShallowLine& line, std::int64_t filter, std::int64_t filters, std::int64_t window,
              std::int64_t vectors, std::int64_t begin, std::int64_t end) {
    constexpr auto kRows = std::make_integer_sequence<int, kGroup>();
    constexpr auto kFew = std::make_integer_sequence<int, kFewRows>();
    const std::int64_t needed = std::min(vectors, (line.count - window + kWide - 1) / kWide);
    const RunTile tile = needed == 1   ? some_rows<1>(filters, kRows)
                         : needed == 2 ? some_rows<kVectors>(filters, kRows)
                         : needed == 3 ? some_rows<3>(filters, kFew)
                                       : some_rows<kManyVectors>(filters, kFew);
    tile(line, {filter, window, begin, end, line.w + filter * line.elements});
}

void run(const ShallowLine& line) {
    const std::int64_t vectors = line.filters <= kFewRows ? kManyVectors : kVectors;
    const std::int64_t step = vectors * kWide;
    // Elements of short windows stay in the first-level cache, and so do the lines of the result if they are written
    // one after the other. Of long windows, the elements of a tile stay there while all filters are read.
    const bool filters_inside = line.end - line.begin >= kLongWindow;
    std::int64_t begin = line.begin;
    do {  // at least once: for sums that are given, and for windows in the padding
        const std::int64_t end = std::min(begin + kShallowChain, line.end);
        if (filters_inside) {
            for (std::int64_t window = 0; window < line.count; window += step) {
                for_each_group(kGroup, line.filters, [&](std::int64_t filter, std::int64_t filters) {
                    run_some(line, filter, filters, window, vectors, begin, end);
                });
            }
        } else {
            for_each_group(kGroup, line.filters, [&](std::int64_t filter, std::int64_t filters) {
                for (std::int64_t window = 0; window < line.count; window += step) {
                    run_some(line, filter, filters, window, vectors, begin, end);
                }
            });
        }
        begin = end;
    } while (begin < line.end);
}

void clear(float* to, std::int64_t floats) {
    for (std::int64_t i = 0; i < floats; i += kWide) {
        store(to + i, Lanes{});
    }
}

template <int Stride>
void separate_strides(const ShallowStrides& s) {
    static_assert(kShuffleLanes<float> == kWide);
    for (std::int64_t i = 0; i < s.count; i += kWide) {
        const float* from = s.x + i * Stride;
        const std::int64_t floats = (s.count - i) * Stride;
        Shuffled<float> phases[Stride];
        if (floats >= Stride * kWide) {
            load_columns<float, Stride>(from, phases);
        } else {
            Shuffled<float> rows[Stride];
            for (int v = 0; v < Stride; ++v) {
                rows[v] = load_part<float>(from + v * kWide, std::clamp<std::int64_t>(floats - v * kWide, 0, kWide), 0);
            }
            columns_of<float, Stride>(rows, phases, std::make_integer_sequence<int, Stride>());
        }
#pragma GCC unroll 8
        for (int p = 0; p < Stride; ++p) {
            store(s.to + p * s.to_step + i, phases[p]);
        }
    }
}

void separate(const ShallowStrides& s) {
    if (s.stride > 1) {
        return with_columns(s.stride, [&](auto stride) { separate_strides<decltype(stride)::value>(s); });
    }
    std::int64_t i = 0;
    for (; i + kWide <= s.count; i += kWide) {
        store(s.to + i, load<float>(s.x + i));
    }
    if (i < s.count) {
        store(s.to + i, load_part<float>(s.x + i, s.count - i, 0));
    }
}

// Values written beyond the end of a line are overwritten by the next line.
void join(const ShallowLines& lines) {
    for (std::int64_t e = 0; e < lines.elements; ++e) {
        const float* from = lines.x + lines.offsets[e];
        float* to = lines.to + e * lines.to_step;
        for (std::int64_t l = 0; l < lines.lines; ++l, from += lines.step, to += lines.count) {
            for (std::int64_t i = 0; i < lines.count; i += kWide) {
                store(to + i, load<float>(from + i));
            }
        }
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(ShallowTable, shallow_table) = {kWide, kGroup, clear, separate, join, run};

}  // namespace graphkit
