// The vector code of pooling along rows: copies of rows by phase, and windows side by side.
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

// Every second element of a and b side by side, from number First on.
template <int First, int... Lane>
inline Floats every_second(Floats a, Floats b, std::integer_sequence<int, Lane...>) {
    return __builtin_shufflevector(a, b, (2 * Lane + First)...);
}

// Which lane of `before` and `v` side by side becomes lane Lane of phase First: `v` is vector number Source of those
// that are separated, and `before` has the lanes that came from vectors before it, or is the first vector itself.
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

// Replaces Stride neighbouring vectors by their phases.
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

using LaneBits = decltype(Floats{} != Floats{});

inline bool any_of(LaneBits lanes) {
    std::int32_t any = 0;
    for (std::int64_t i = 0; i < kStep; ++i) {
        any |= lanes[i];
    }
    return any != 0;
}

// Stride vectors from x[from] on, or as much of them as the row has, to the phases.
template <int Stride, bool Whole>
inline void copy_vectors(const float* x, std::int64_t from, std::int64_t width, float fill, float* const* to,
                         LaneBits& nan) {
    Floats v[Stride];
#pragma GCC unroll 8
    for (int i = 0; i < Stride; ++i) {
        const std::int64_t at = from + i * kStep;
        v[i] = Whole ? load(x + at) : load_up_to(at < width ? x + at : x, width - at, fill);
        nan |= v[i] != v[i];
    }
    separate<Stride>(v, std::make_integer_sequence<int, Stride>());
#pragma GCC unroll 8
    for (int i = 0; i < Stride; ++i) {
        if (to[i] != nullptr) {
            store(to[i] + from / Stride, v[i]);
        }
    }
}

template <int Stride>
bool copy_rows_of(const PaddedLayout& layout, const float* x, std::int64_t rows, float fill, float* padded) {
    float* to[Stride] = {};
    for (std::int64_t i = 0; i < layout.phase_count; ++i) {
        to[layout.phases[i].phase] = padded + layout.phases[i].offset;
    }
    LaneBits nan{};
    for (std::int64_t row = 0; row < rows; ++row, x += layout.width) {
        std::int64_t at = 0;
        for (; at + Stride * kStep <= layout.width; at += Stride * kStep) {
            copy_vectors<Stride, true>(x, at, layout.width, fill, to, nan);
        }
        if (at < layout.width) {
            copy_vectors<Stride, false>(x, at, layout.width, fill, to, nan);
        }
        for (auto& phase : to) {
            phase = phase == nullptr ? nullptr : phase + layout.row;
        }
    }
    return any_of(nan);
}

bool copy_rows(const PaddedLayout& layout, const float* x, std::int64_t rows, float fill, float* padded) {
    switch (layout.stride) {
        case 1:
            return copy_rows_of<1>(layout, x, rows, fill, padded);
        case 2:
            return copy_rows_of<2>(layout, x, rows, fill, padded);
        case 3:
            return copy_rows_of<3>(layout, x, rows, fill, padded);
        case 4:
            return copy_rows_of<4>(layout, x, rows, fill, padded);
        case 5:
            return copy_rows_of<5>(layout, x, rows, fill, padded);
        case 6:
            return copy_rows_of<6>(layout, x, rows, fill, padded);
        case 7:
            return copy_rows_of<7>(layout, x, rows, fill, padded);
        default:
            return copy_rows_of<kPaddedStride>(layout, x, rows, fill, padded);
    }
}

// What a window reads: `count` elements at each of `depths` depths, in row-major order.
struct TapList {
    const std::int64_t* offsets;
    std::int64_t count;
    std::int64_t depths;
    std::int64_t depth_step;
};

template <std::int64_t Wide, typename Combine>
inline void combine_taps(const float* from, const TapList& taps, Combine combine, Floats* sums) {
    for (std::int64_t depth = 0; depth < taps.depths; ++depth, from += taps.depth_step) {
        for (std::int64_t t = 0; t < taps.count; ++t) {
            const float* at = from + taps.offsets[t];
            for (std::int64_t i = 0; i < Wide; ++i) {
                sums[i] = combine(sums[i], load(at + i * kStep));
            }
        }
    }
}

// `columns` windows side by side, the first of which reads at `from`. finish(sum, column) gives the result.
template <typename Combine, typename Finish>
inline void pool_row(const float* from, const TapList& taps, std::int64_t columns, float start, float* y,
                     Combine combine, Finish finish) {
    constexpr std::int64_t kWide = 4;
    std::int64_t w = 0;
    for (; w + kWide * kStep <= columns; w += kWide * kStep) {
        Floats sums[kWide];
        for (auto& sum : sums) {
            sum = splat(start);
        }
        combine_taps<kWide>(from + w, taps, combine, sums);
        for (std::int64_t i = 0; i < kWide; ++i) {
            store(y + w + i * kStep, finish(sums[i], w + i * kStep));
        }
    }
    for (; w < columns; w += kStep) {
        Floats sum = splat(start);
        combine_taps<1>(from + w, taps, combine, &sum);
        const Floats result = finish(sum, w);
        columns - w >= kStep ? store(y + w, result) : store_part(y + w, result, columns - w);
    }
}

inline const float* rows_of(const PaddedLayout& layout, const PaddedWindows& windows, std::int64_t row) {
    return windows.rows + (windows.heights[row].height - windows.first_height) * layout.row;
}

inline TapList taps_of(const PaddedLayout& layout, const PaddedWindows& windows, std::int64_t row) {
    return {layout.offsets, windows.heights[row].count * layout.taps, windows.depths, windows.depth_step};
}

// The rows of one window combined into windows.merged, element by element.
template <typename Combine>
inline void merge_rows(const PaddedLayout& layout, const PaddedWindows& windows, std::int64_t count, const float* from,
                       float start, Combine combine) {
    for (std::int64_t at = 0; at < layout.row; at += kStep) {
        Floats sum = splat(start);
        for (std::int64_t depth = 0; depth < windows.depths; ++depth) {
            const float* row = from + depth * windows.depth_step + at;
            for (std::int64_t i = 0; i < count; ++i) {
                sum = combine(sum, load(row + i * layout.row_step));
            }
        }
        store(windows.merged + at, sum);
    }
}

template <typename Combine>
inline void pool_maximum(const PaddedLayout& layout, const PaddedWindows& windows, float* y, Combine combine) {
    constexpr float kLowest = -std::numeric_limits<float>::infinity();
    const auto keep = [](Floats v, std::int64_t) { return v; };
    for (std::int64_t i = 0; i < windows.count; ++i, y += layout.columns) {
        const float* from = rows_of(layout, windows, i);
        if (windows.merged != nullptr) {
            merge_rows(layout, windows, windows.heights[i].count, from, kLowest, combine);
            const TapList taps{layout.offsets, layout.taps, 1, 0};
            pool_row(windows.merged, taps, layout.columns, kLowest, y, combine, keep);
            continue;
        }
        pool_row(from, taps_of(layout, windows, i), layout.columns, kLowest, y, combine, keep);
    }
}

// NaN wins over numbers, the first of equal numbers over those that follow.
void pool_maximum_of_any(const PaddedLayout& layout, const PaddedWindows& windows, float* y) {
    pool_maximum(layout, windows, y, [](Floats a, Floats b) { return b != b ? b : max_of<float>(a, b); });
}

void pool_maximum_of_numbers(const PaddedLayout& layout, const PaddedWindows& windows, float* y) {
    pool_maximum(layout, windows, y, [](Floats a, Floats b) { return max_of<float>(a, b); });
}

void pool_mean(const PaddedLayout& layout, const PaddedWindows& windows, float* y) {
    const std::int64_t length = (layout.columns + kStep - 1) / kStep * kStep;
    for (std::int64_t i = 0; i < windows.count; ++i, y += layout.columns) {
        const float* divisors = windows.divisors + windows.divisor_rows[i] * length;
        pool_row(
            rows_of(layout, windows, i), taps_of(layout, windows, i), layout.columns, 0.0F, y,
            [](Floats a, Floats b) { return a + b; },
            [divisors](Floats sum, std::int64_t column) { return sum / load(divisors + column); });
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(PaddedPoolFunctions, padded_pool_functions) = {
    kStep, copy_rows, pool_maximum_of_any, pool_maximum_of_numbers, pool_mean,
};

}  // namespace graphkit
