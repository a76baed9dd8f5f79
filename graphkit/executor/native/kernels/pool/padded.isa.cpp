// Vector functions of pooling along rows: input rows become padded rows, which adjacent windows read.
#include <cstdint>
#include <limits>
#include <utility>

#include "kernels/pool/padded_table.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

using Floats = Vector<float>;
constexpr std::int64_t kStep = kLanes<float>;
using LaneNumbers = std::make_integer_sequence<int, kStep>;

// Returns every second element of the concatenation of a and b, from number First on.
template <int First, int... Lane>
inline Floats every_second(Floats a, Floats b, std::integer_sequence<int, Lane...>) {
    return __builtin_shufflevector(a, b, (2 * Lane + First)...);
}

// Which lane of the concatenation of `before` and `v` becomes lane `lane` of phase First. `v` is vector number Source
// of those that are separated. `before` has the lanes from earlier vectors, or is the first vector itself.
template <int Stride, int First, int Source>
constexpr int lane_of_phase(int lane) {
    const int count = static_cast<int>(kStep);
    const int element = Stride * lane + First;
    if (element / count == Source) {
        return count + element % count;
    }
    return Source > 1 ? lane : element < count ? element : 0;
}

template <int Stride, int First, int Source, int... Lane>
inline Floats phase_of(Floats before, const Floats* v, std::integer_sequence<int, Lane...> lanes) {
    const Floats chosen = __builtin_shufflevector(before, v[Source], lane_of_phase<Stride, First, Source>(Lane)...);
    if constexpr (Source + 1 < Stride) {
        return phase_of<Stride, First, Source + 1>(chosen, v, lanes);
    } else {
        return chosen;
    }
}

// Replaces Stride adjacent vectors by their phases.
template <int Stride, int... Phase>
inline void separate(Floats* v, std::integer_sequence<int, Phase...>) {
    if constexpr (Stride % 2 == 0) {
        constexpr int kHalf = Stride / 2;
        Floats even[kHalf];
        Floats odd[kHalf];
#pragma GCC unroll 4
        for (int i = 0; i < kHalf; ++i) {
            even[i] = every_second<0>(v[2 * i], v[2 * i + 1], LaneNumbers());
            odd[i] = every_second<1>(v[2 * i], v[2 * i + 1], LaneNumbers());
        }
        separate<kHalf>(even, std::make_integer_sequence<int, kHalf>());
        separate<kHalf>(odd, std::make_integer_sequence<int, kHalf>());
#pragma GCC unroll 4
        for (int i = 0; i < kHalf; ++i) {
            v[2 * i] = even[i];
            v[2 * i + 1] = odd[i];
        }
    } else if constexpr (Stride > 1) {
        const Floats result[Stride] = {phase_of<Stride, Phase, 1>(v[0], v, LaneNumbers())...};
        ((v[Phase] = result[Phase]), ...);
    }
}

inline Floats load_up_to(const float* from, std::int64_t count, float fill) {
    return count >= kStep ? load(from) : count > 0 ? load_part(from, count, fill) : splat(fill);
}

// The input rows that become one padded row: `count` rows at each of `depths` depths.
struct Source {
    const float* x;
    std::int64_t count;
    std::int64_t row_step;
    std::int64_t depths;
    std::int64_t depth_step;
};

// Combines the rows, element by element, for Stride vectors from element `at` on, and stores their phases. `Whole`: the
// rows have all of these elements.
template <int Stride, bool Whole, typename Combine>
inline void merge_vectors(const Source& source, std::int64_t at, std::int64_t width, float start, Combine combine,
                          float* const* to) {
    Floats v[Stride];
    for (auto& vector : v) {
        vector = splat(start);
    }
    for (std::int64_t depth = 0; depth < source.depths; ++depth) {
        const float* x = source.x + depth * source.depth_step;
        for (std::int64_t row = 0; row < source.count; ++row, x += source.row_step) {
#pragma GCC unroll 8
            for (int i = 0; i < Stride; ++i) {
                const std::int64_t from = at + i * kStep;
                v[i] = combine(v[i],
                               Whole ? load(x + from) : load_up_to(from < width ? x + from : x, width - from, start));
            }
        }
    }
    separate<Stride>(v, std::make_integer_sequence<int, Stride>());
#pragma GCC unroll 8
    for (int i = 0; i < Stride; ++i) {
        if (to[i] != nullptr) {
            store(to[i] + at / Stride, v[i]);
        }
    }
}

template <int Stride, typename SourceOf, typename Combine>
inline void merge_rows_by(const PaddedLayout& layout, std::int64_t count, SourceOf source_of, float start,
                          Combine combine, float* padded) {
    float* to[Stride] = {};
    for (std::int64_t i = 0; i < layout.phase_count; ++i) {
        to[layout.phases[i].phase] = padded + layout.phases[i].offset;
    }
    for (std::int64_t row = 0; row < count; ++row) {
        const Source source = source_of(row);
        std::int64_t at = 0;
        for (; at + Stride * kStep <= layout.width; at += Stride * kStep) {
            merge_vectors<Stride, true>(source, at, layout.width, start, combine, to);
        }
        if (at < layout.width) {
            merge_vectors<Stride, false>(source, at, layout.width, start, combine, to);
        }
#pragma GCC unroll 8
        for (int i = 0; i < Stride; ++i) {
            to[i] = to[i] == nullptr ? nullptr : to[i] + layout.row;
        }
    }
}

// Writes `count` padded rows. source_of(row) returns the input rows of each.
template <typename SourceOf, typename Combine>
inline void merge_rows(const PaddedLayout& layout, std::int64_t count, SourceOf source_of, float start, Combine combine,
                       float* padded) {
    switch (layout.stride) {
        case 1:
            return merge_rows_by<1>(layout, count, source_of, start, combine, padded);
        case 2:
            return merge_rows_by<2>(layout, count, source_of, start, combine, padded);
        case 3:
            return merge_rows_by<3>(layout, count, source_of, start, combine, padded);
        case 4:
            return merge_rows_by<4>(layout, count, source_of, start, combine, padded);
        case 5:
            return merge_rows_by<5>(layout, count, source_of, start, combine, padded);
        case 6:
            return merge_rows_by<6>(layout, count, source_of, start, combine, padded);
        case 7:
            return merge_rows_by<7>(layout, count, source_of, start, combine, padded);
        default:
            return merge_rows_by<kPaddedStride>(layout, count, source_of, start, combine, padded);
    }
}

template <std::int64_t Wide, typename Combine>
inline void combine_taps(const PaddedLayout& layout, const float* from, Combine combine, Floats* sums) {
    for (std::int64_t t = 0; t < layout.taps; ++t) {
        const float* at = from + layout.offsets[t];
        for (std::int64_t i = 0; i < Wide; ++i) {
            sums[i] = combine(sums[i], load(at + i * kStep));
        }
    }
}

// Computes a row of windows from a padded row. finish(sum, column) returns the result.
template <typename Combine, typename Finish>
inline void pool_row(const PaddedLayout& layout, const float* from, float start, float* y, Combine combine,
                     Finish finish) {
    const std::int64_t columns = layout.columns;
    constexpr std::int64_t kWide = 4;
    std::int64_t w = 0;
    for (; w + kWide * kStep <= columns; w += kWide * kStep) {
        Floats sums[kWide];
        for (auto& sum : sums) {
            sum = splat(start);
        }
        combine_taps<kWide>(layout, from + w, combine, sums);
        for (std::int64_t i = 0; i < kWide; ++i) {
            store(y + w + i * kStep, finish(sums[i], w + i * kStep));
        }
    }
    for (; w < columns; w += kStep) {
        Floats sum = splat(start);
        combine_taps<1>(layout, from + w, combine, &sum);
        const Floats result = finish(sum, w);
        columns - w >= kStep ? store(y + w, result) : store_part(y + w, result, columns - w);
    }
}

// Computes rows of windows: writes one padded row for each, then combines the elements of its windows. finish(sum, row,
// column) returns the result.
template <typename Combine, typename Finish>
inline void pool_rows(const PaddedLayout& layout, const PaddedWindows& windows, float start, float* y, Combine combine,
                      Finish finish) {
    const auto source_of = [&](std::int64_t row) {
        const PoolReach& height = windows.heights[row];
        const float* x = windows.x + (height.count > 0 ? height.first * layout.width : 0);
        return Source{x, height.count, windows.row_step, windows.depths, windows.depth_step};
    };
    merge_rows(layout, windows.count, source_of, start, combine, windows.padded);
    for (std::int64_t row = 0; row < windows.count; ++row, y += layout.columns) {
        pool_row(layout, windows.padded + row * layout.row, start, y, combine,
                 [&](Floats sum, std::int64_t column) { return finish(sum, row, column); });
    }
}

// If an element is NaN, so is the maximum.
void pool_maximum(const PaddedLayout& layout, const PaddedWindows& windows, float* y) {
    pool_rows(
        layout, windows, -std::numeric_limits<float>::infinity(), y,
        [](Floats a, Floats b) { return largest_of(a, b); }, [](Floats v, std::int64_t, std::int64_t) { return v; });
}

void pool_mean(const PaddedLayout& layout, const PaddedWindows& windows, float* y) {
    const std::int64_t length = (layout.columns + kStep - 1) / kStep * kStep;
    pool_rows(
        layout, windows, 0.0F, y, [](Floats a, Floats b) { return a + b; },
        [&](Floats sum, std::int64_t row, std::int64_t column) {
            return sum / load(windows.divisors + windows.divisor_rows[row] * length + column);
        });
}

}  // namespace

GRAPHKIT_ISA_DEFINE(PaddedPoolFunctions, padded_pool_functions) = {kStep, pool_maximum, pool_mean};

}  // namespace graphkit
