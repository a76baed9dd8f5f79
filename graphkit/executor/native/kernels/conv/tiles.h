// Functions that convolutions in tiles share: products of rows with a block of filters, and the epilogue. For *.isa.cpp
// only.
#pragma once

#include <algorithm>
#include <utility>

#include "kernels/conv/tiled_table.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

using Lanes = Vector<float>;
constexpr std::int64_t kWide = kLanes<float>;
constexpr int kVectors = 2;
constexpr std::int64_t kBlock = kVectors * kWide;
#if defined(__AVX512F__)
constexpr int kRegisterRows = 14;
constexpr std::int64_t kPartTiles = 28;
#else
constexpr int kRegisterRows = 6;
constexpr std::int64_t kPartTiles = 30;
#endif
// The filters of this many elements ahead are prefetched.
constexpr int kAhead = 16;

// Floats from row to row of this many elements: not a power of two, because rows would then share one set of the cache.
constexpr std::int64_t row_floats(std::int64_t elements) {
    return (elements + 15) / 16 * 16 + 16;
}

// sums += rows [Rows, elements], `step` floats apart, times the first `Vectors` vectors of filters [elements, Given *
// kWide]. The same vectors of the filters kAhead elements later are prefetched.
template <int Given, int Rows, int Vectors>
[[gnu::always_inline]] inline void add_products(const float* rows, std::int64_t step, const float* filters,
                                                std::int64_t elements, Lanes (&sums)[Rows][Vectors]) {
    constexpr std::int64_t kColumns = Given * kWide;
    for (std::int64_t e = 0; e < elements; ++e) {
        const float* filter = filters + e * kColumns;
        Lanes factors[Vectors];
        for (int v = 0; v < Vectors; ++v) {
            factors[v] = load<float>(filter + v * kWide);
            __builtin_prefetch(filter + kAhead * kColumns + v * kWide);
        }
        for (int r = 0; r < Rows; ++r) {
            const Lanes element = splat(rows[r * step + e]);
            for (int v = 0; v < Vectors; ++v) {
                sums[r][v] += element * factors[v];
            }
        }
    }
}

// Multiplies rows [Rows, elements] in one chain of sums for each result. The products are added to `to`, whose rows are
// `to_step` apart, or overwrite it.
template <int Rows, int Vectors, int Given>
__attribute__((noinline)) void multiply_rows(const float* rows, std::int64_t step, const float* filters,
                                             std::int64_t elements, float* to, std::int64_t to_step, bool adds) {
    Lanes sums[Rows][Vectors] = {};
    add_products<Given>(rows, step, filters, elements, sums);
    // The loops are unrolled: otherwise the sums would be moved from registers to memory.
    if (adds) {
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
            for (int v = 0; v < Vectors; ++v) {
                sums[r][v] += load<float>(to + r * to_step + v * kWide);
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
        for (int v = 0; v < Vectors; ++v) {
            store(to + r * to_step + v * kWide, sums[r][v]);
        }
    }
}

using MultiplyRows = void (*)(const float*, std::int64_t, const float*, std::int64_t, float*, std::int64_t, bool);

template <int Vectors, int Given, int... Less>
constexpr MultiplyRows multiply_some(std::int64_t rows, std::integer_sequence<int, Less...>) {
    constexpr MultiplyRows all[] = {multiply_rows<Less + 1, Vectors, Given>...};
    return all[rows - 1];
}

// Like multiply_rows, for any number of rows, in chains of `chain` elements. The filters of a chain stay in the
// first-level cache.
template <int Vectors = kVectors, int Given = Vectors>
inline void multiply(std::int64_t count, const float* rows, std::int64_t step, const float* filters,
                     std::int64_t elements, std::int64_t chain, float* to, bool adds = false,
                     std::int64_t to_step = Vectors * kWide) {
    const std::int64_t parts = (count + kRegisterRows - 1) / kRegisterRows;
    for (std::int64_t first = 0; first < elements; first += chain) {
        std::int64_t begin = 0;
        for (std::int64_t part = 0; part < parts; ++part) {
            const std::int64_t some = (count - begin + parts - part - 1) / (parts - part);
            const MultiplyRows run =
                multiply_some<Vectors, Given>(some, std::make_integer_sequence<int, kRegisterRows>());
            run(rows + begin * step + first, step, filters + first * Given * kWide, std::min(chain, elements - first),
                to + begin * to_step, to_step, adds || first > 0);
            begin += some;
        }
    }
}

// Returns 0 in each lane, or NaN if the element is not finite.
inline Lanes not_finite(Lanes x) {
    return x * splat(0.0F);
}

inline bool is_sound(Lanes watch) {
    return across<Add, float>(watch) == 0;
}

// Element (m, c, tap) of the filters before the transform; zero for a missing filter.
inline float given_filter(const TiledFilters& f, std::int64_t m, std::int64_t c, std::int64_t tap) {
    return m < f.filters ? f.w[m * f.filter_step + c * f.channel_step + tap * f.tap_step] : 0.0F;
}

inline bool any_unsound(const TiledPart& p, std::int64_t block) {
    bool any = false;
    for (std::int64_t chunk = 0; chunk < p.shape.chunks(); ++chunk) {
        any = any || p.unsound[block * p.shape.chunks() + chunk] != 0;
    }
    return any;
}

// Applies the epilogue to the results of one block.
class Finish {
  public:
    Finish(const TiledPart& p, std::int64_t block) : part_(p), first_(block * kBlock) {
        const float* bias = p.epilogue.bias;
        for (; vectors_ < kVectors && first_ + vectors_ * kWide < p.shape.filters; ++vectors_) {
            const std::int64_t filter = first_ + vectors_ * kWide;
            count_[vectors_] = std::min(p.shape.filters - filter, kWide);
            bias_[vectors_] = bias == nullptr ? Lanes{} : load_part<float>(bias + filter, count_[vectors_], 0);
        }
    }

    // Stores the results of the block's filters at one position of the batch.
    void operator()(const Lanes (&results)[kVectors], std::int64_t position) const {
        const TiledEpilogue& e = part_.epilogue;
        for (int v = 0; v < vectors_; ++v) {
            const std::int64_t at = position * part_.shape.filters + first_ + v * kWide;
            Lanes x = results[v] + bias_[v];
            const Lanes residual =
                e.residual == nullptr ? Lanes{} : splat(e.weight) * load_part<float>(e.residual + at, count_[v], 0);
            if (e.residual != nullptr && !e.residual_last) {
                x += residual;
            }
            if (e.slope != 1) {
                x = x < Lanes{} ? x * splat(e.slope) : x;
            }
            x = at_most<float>(at_least<float>(x, e.low), e.high);
            if (e.residual != nullptr && e.residual_last) {
                x += residual;
            }
            store_part<float>(part_.y + at, x, count_[v]);
        }
    }

    // Stores rows of results, from a position of the batch on. The results stay in registers only if the loops over
    // rows are unrolled.
    template <int Rows, int Vectors>
    [[gnu::always_inline]] void store_rows(const Lanes (&sums)[Rows][Vectors], std::int64_t position) const {
        const TiledEpilogue& e = part_.epilogue;
        const bool whole = count_[Vectors - 1] == kWide;
        if (e.slope != 1 || (e.residual != nullptr && e.residual_last)) {
            Lanes results[Rows][kVectors] = {};
#pragma GCC unroll 16
            for (int r = 0; r < Rows; ++r) {
                for (int v = 0; v < Vectors; ++v) {
                    results[r][v] = sums[r][v];
                }
            }
            for (int r = 0; r < Rows; ++r) {
                (*this)(results[r], position + r);
            }
        } else if (e.residual != nullptr) {
            whole ? store_bounded<true, true>(sums, position) : store_bounded<true, false>(sums, position);
        } else {
            whole ? store_bounded<false, true>(sums, position) : store_bounded<false, false>(sums, position);
        }
    }

  private:
    // Like store_rows, for an activation without slope, and for a residual that is added before it. Whole: whether the
    // last vector is full.
    template <bool Residual, bool Whole, int Rows, int Vectors>
    [[gnu::always_inline]] void store_bounded(const Lanes (&sums)[Rows][Vectors], std::int64_t position) const {
        const std::int64_t step = part_.shape.filters;
        const std::int64_t at = position * step + first_;
        float* y = part_.y + at;
        const float* residual = Residual ? part_.epilogue.residual + at : nullptr;
        const float low = part_.epilogue.low;
        const float high = part_.epilogue.high;
        const std::int64_t count = count_[Vectors - 1];
        Lanes results[Rows][Vectors];
        const auto each = [&](auto&& body) {
#pragma GCC unroll 16
            for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
                for (int v = 0; v < Vectors; ++v) {
                    body(results[r][v], r, v);
                }
            }
        };
        each([&](Lanes& x, int r, int v) {
            x = sums[r][v] + bias_[v];
            if constexpr (Residual) {
                const bool whole = Whole || v < Vectors - 1;
                const float* added = residual + r * step + v * kWide;
                x += splat(part_.epilogue.weight) * (whole ? load<float>(added) : load_part<float>(added, count, 0));
            }
        });
        // Most activations have one bound, or none.
        if (low > -std::numeric_limits<float>::infinity()) {
            each([&](Lanes& x, int, int) { x = at_least<float>(x, low); });
        }
        if (high < std::numeric_limits<float>::infinity()) {
            each([&](Lanes& x, int, int) { x = at_most<float>(x, high); });
        }
        each([&](const Lanes& x, int r, int v) {
            float* to = y + r * step + v * kWide;
            if (Whole || v < Vectors - 1) {
                store(to, x);
            } else {
                store_part<float>(to, x, count);
            }
        });
    }

    const TiledPart& part_;
    std::int64_t first_;
    int vectors_ = 0;  // number of vectors that contain filters
    std::int64_t count_[kVectors] = {};
    Lanes bias_[kVectors] = {};
};

// Ends a chain of sums of rows [Rows, Vectors * kWide] with several blocks of filters. `products`: the sums of each row
// over earlier elements, if `adds`, `Step` floats apart. The new sums are stored there if `finishes` is null, because
// later elements follow. Otherwise `finishes`, one for each block, computes the results from `position` on.
template <std::int64_t Step, int Rows, int Vectors>
[[gnu::always_inline]] inline void end_chain(Lanes (&sums)[Rows][Vectors], float* products, bool adds,
                                             const Finish* finishes, std::int64_t position) {
    // The loops are unrolled: otherwise the sums would be moved from registers to memory.
    if (adds) {
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
            for (int v = 0; v < Vectors; ++v) {
                sums[r][v] += load<float>(products + r * Step + v * kWide);
            }
        }
    }
    if (finishes == nullptr) {
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
            for (int v = 0; v < Vectors; ++v) {
                store(products + r * Step + v * kWide, sums[r][v]);
            }
        }
        return;
    }
    constexpr int kEach = std::min(Vectors, kVectors);
#pragma GCC unroll 2
    for (int b = 0; b < Vectors / kEach; ++b) {
        Lanes block[Rows][kEach];
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
            for (int v = 0; v < kEach; ++v) {
                block[r][v] = sums[r][b * kEach + v];
            }
        }
        finishes[b].store_rows(block, position);
    }
}

}  // namespace
}  // namespace graphkit
