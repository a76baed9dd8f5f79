// Sums of a few filters over windows. The lanes of a vector hold elements of one window, not filters, which are too few
// to fill a vector. The lanes are added at the end.
#include <algorithm>
#include <utility>

#include "kernels/conv/narrow_table.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

using Lanes = Vector<float>;
constexpr std::int64_t kWide = kLanes<float>;
constexpr int kGroup = 4;  // filters that are computed together
#if defined(__AVX512F__)
constexpr int kWindows[kGroup] = {14, 12, 8, 6};  // windows that are computed together, for 1, 2, ... filters
#else
constexpr int kWindows[kGroup] = {8, 5, 3, 2};
#endif
constexpr int kMostResults = 24;  // most windows times filters that are computed together

std::int64_t vectors_of(std::int64_t run) {
    return (run + kWide - 1) / kWide;
}

// Arranged filters are groups of [runs, vectors, filters of the group, kWide]; the last vector of a run is padded with
// zeros. Calls body(first filter, filters) for each group.
template <typename Body>
void for_each_group(std::int64_t filters, Body&& body) {
    const std::int64_t groups = (filters + kGroup - 1) / kGroup;
    for (std::int64_t g = 0; g < groups; ++g) {
        const std::int64_t begin = filters * g / groups;
        body(begin, filters * (g + 1) / groups - begin);
    }
}

bool arrange(const NarrowFilters& given, const NarrowLine& shape, float* to) {
    const auto element = [&](std::int64_t f, std::int64_t r, std::int64_t e) {
        return given.w[f * given.filter_step + r * given.run_step + e / given.channels * given.column_step +
                       e % given.channels * given.channel_step];
    };
    Lanes watch{};
    for_each_group(shape.filters, [&](std::int64_t begin, std::int64_t count) {
        for (std::int64_t r = 0; r < shape.runs; ++r) {
            for (std::int64_t v = 0; v < vectors_of(shape.run); ++v) {
                for (std::int64_t f = begin; f < begin + count; ++f, to += kWide) {
                    for (std::int64_t e = v * kWide; e < (v + 1) * kWide; ++e) {
                        to[e - v * kWide] = e < shape.run ? element(f, r, e) : 0.0F;
                    }
                    watch += load<float>(to) * splat(0.0F);  // NaN if an element is not finite
                }
            }
        }
    });
    return across<Add, float>(watch) == 0;
}

float element(const NarrowLine& line, std::int64_t filter, std::int64_t run, std::int64_t e) {
    const float* found = nullptr;
    for_each_group(line.filters, [&](std::int64_t begin, std::int64_t count) {
        if (filter >= begin && filter < begin + count) {
            const std::int64_t vectors = vectors_of(line.run);
            found = line.w + begin * line.runs * vectors * kWide +
                    ((run * vectors + e / kWide) * count + filter - begin) * kWide + e % kWide;
        }
    });
    return *found;
}

template <int Filters, int Windows>
inline void add_products(Lanes (&sums)[Windows][Filters], const float* w, const Lanes (&x)[Windows]) {
    for (int f = 0; f < Filters; ++f) {
        const Lanes factor = in_register(load<float>(w + f * kWide));
        for (int i = 0; i < Windows; ++i) {
            sums[i][f] += x[i] * factor;
        }
    }
}

// Sums `Windows` windows from `x` on, [Windows, Filters].
template <int Filters, int Windows>
__attribute__((noinline)) void sum_windows(const NarrowLine& line, const float* x, const float* w, float* to) {
    Lanes sums[Windows][Filters] = {};
    const std::int64_t rest = line.run % kWide;
    const std::int64_t whole = line.run - rest;
    for (std::int64_t r = 0; r < line.runs; ++r) {
        const float* from = x + line.offsets[r];
        std::int64_t e = 0;
        for (; e < whole; e += kWide, w += Filters * kWide) {
            Lanes elements[Windows];
            for (int i = 0; i < Windows; ++i) {
                elements[i] = in_register(load<float>(from + i * line.step + e));
            }
            add_products<Filters, Windows>(sums, w, elements);
        }
        if (rest != 0) {
            Lanes elements[Windows];
            for (int i = 0; i < Windows; ++i) {
                elements[i] = load_part<float>(from + i * line.step + e, rest, 0);
            }
            add_products<Filters, Windows>(sums, w, elements);
            w += Filters * kWide;
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < Windows; ++i) {
        for (int f = 0; f < Filters; ++f) {
            to[i * Filters + f] = across<Add, float>(sums[i][f]);
        }
    }
}

using SumWindows = void (*)(const NarrowLine&, const float*, const float*, float*);

template <int Filters, int... Less>
SumWindows some_windows(std::int64_t windows, std::integer_sequence<int, Less...>) {
    static constexpr SumWindows all[] = {sum_windows<Filters, Less + 1>...};
    return all[windows - 1];
}

template <int... Less>
SumWindows some_filters(std::int64_t filters, std::int64_t windows, std::integer_sequence<int, Less...>) {
    static constexpr SumWindows (*all[])(std::int64_t) = {[](std::int64_t count) {
        return some_windows<Less + 1>(count, std::make_integer_sequence<int, kWindows[Less]>());
    }...};
    return all[filters - 1](windows);
}

// Applies the epilogue to contiguous results [windows, filters]; `biases` has one bias for each.
void finish_together(const TiledEpilogue& e, std::int64_t count, const float* sums, const float* biases,
                     const float* residual, float* y) {
    for (std::int64_t i = 0; i < count; i += kWide) {
        const std::int64_t some = std::min(count - i, kWide);
        Lanes x = load_part<float>(sums + i, some, 0) + load_part<float>(biases + i, some, 0);
        const Lanes other = residual == nullptr ? Lanes{} : splat(e.weight) * load_part<float>(residual + i, some, 0);
        if (residual != nullptr && !e.residual_last) {
            x += other;
        }
        if (e.slope != 1) {
            x = x < Lanes{} ? x * splat(e.slope) : x;
        }
        x = at_most<float>(at_least<float>(x, e.low), e.high);
        store_part<float>(y + i, residual != nullptr && e.residual_last ? x + other : x, some);
    }
}

void finish(const NarrowLine& line, std::int64_t first, std::int64_t windows, std::int64_t filter, std::int64_t filters,
            const float* sums, const float* biases) {
    const float* residual = line.epilogue.residual;
    const bool together = filters == line.filters;
    for (std::int64_t i = 0; i < (together ? 1 : windows); ++i) {
        const std::int64_t at = (first + i) * line.filters + filter;
        finish_together(line.epilogue, together ? windows * filters : filters, sums + i * filters, biases,
                        residual == nullptr ? nullptr : residual + at, line.y + at);
    }
}

void run(const NarrowLine& line) {
    const float* w = line.w;
    for_each_group(line.filters, [&](std::int64_t filter, std::int64_t filters) {
        const std::int64_t most = kWindows[filters - 1];
        const std::int64_t parts = (line.count + most - 1) / most;
        float biases[kMostResults] = {};
        for (std::int64_t i = 0; i < std::min(line.count, most) * filters && line.epilogue.bias != nullptr; ++i) {
            biases[i] = line.epilogue.bias[filter + i % filters];
        }
        for (std::int64_t p = 0; p < parts; ++p) {
            float sums[kMostResults];
            const std::int64_t begin = line.count * p / parts;
            const std::int64_t windows = line.count * (p + 1) / parts - begin;
            const SumWindows sum = some_filters(filters, windows, std::make_integer_sequence<int, kGroup>());
            sum(line, line.first + begin * line.step, w, sums);
            finish(line, begin, windows, filter, filters, sums, biases);
        }
        w += line.runs * vectors_of(line.run) * filters * kWide;
    });
}

}  // namespace

GRAPHKIT_ISA_DEFINE(NarrowTable, narrow_table) = {kWide, arrange, element, finish, run};

}  // namespace graphkit
