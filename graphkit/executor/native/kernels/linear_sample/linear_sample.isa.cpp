// Linear interpolation between rows of channels.
#include "kernels/linear_sample/linear_sample_table.h"

#include <algorithm>

#include "simd/vector.h"

namespace graphkit {
namespace {

using Lanes = Vector<float>;
constexpr std::int64_t kWide = kLanes<float>;
// Points whose coordinates are prepared together.
constexpr std::int64_t kPoints = 64;

// The two neighbours of each coordinate along an axis: their places, -1 if they count as 0, and their weights.
struct Neighbours {
    std::int32_t place[2][kPoints];
    float weight[2][kPoints];
};

// The coordinate NaN reads 0 or, with `border`, gives NaN.
void find_neighbours(const float* at, std::int64_t count, std::int64_t size, bool border, Neighbours& to) {
    const auto length = static_cast<float>(size);
    const auto last = static_cast<std::int32_t>(size - 1);
    for (std::int64_t i = 0; i < count; ++i) {
        // Both neighbours of farther coordinates are outside, too.
        const float near = at[i] < -4.0F ? -4.0F : at[i] > length + 4.0F ? length + 4.0F : at[i];
        const float low = __builtin_floorf(near);
        const float rest = near - low;
        const auto first = low == low ? static_cast<std::int32_t>(low) : -4;
        const auto keep = [&](int side, std::int32_t place, float weight) {
            const std::int32_t inside = std::clamp<std::int32_t>(place, 0, last);
            to.place[side][i] = border || inside == place ? inside : -1;
            to.weight[side][i] = border || inside == place ? weight : 0.0F;
        };
        keep(0, first, 1.0F - rest);
        keep(1, first + 1, rest);
    }
}

// The elements of a plane at these places; 0 where a place is negative.
inline Lanes gathered(const float* plane, Vector<std::int32_t> places) {
#if defined(__AVX512F__)
    const auto at = bit_cast<__m512i>(places);
    const __mmask16 inside = _mm512_cmpge_epi32_mask(at, _mm512_setzero_si512());
    return bit_cast<Lanes>(_mm512_mask_i32gather_ps(_mm512_setzero_ps(), inside, at, plane, sizeof(float)));
#elif defined(__AVX2__)
    const auto at = bit_cast<__m256i>(places);
    const auto inside = bit_cast<__m256>(places >= 0);
    return bit_cast<Lanes>(_mm256_mask_i32gather_ps(_mm256_setzero_ps(), plane, at, inside, sizeof(float)));
#else
    Lanes read{};
    for (std::int64_t i = 0; i < kWide; ++i) {
        if (places[i] >= 0) {
            read[i] = plane[places[i]];
        }
    }
    return read;
#endif
}

struct Weights {
    Weights() = default;
    explicit Weights(const float (&w)[4]) : of{splat(w[0]), splat(w[1]), splat(w[2]), splat(w[3])} {}

    // Fused in the same way for all callers, so that their results have the same bits.
    Lanes sum(Lanes a, Lanes b, Lanes c, Lanes d) const { return (of[0] * a + of[1] * b) + (of[2] * c + of[3] * d); }

    Lanes sum(const float* a, const float* b, const float* c, const float* d) const {
        return sum(load(a), load(b), load(c), load(d));
    }

    Lanes of[4];
};

inline void sum_corners(const float* const (&corners)[4], const float (&weights)[4], std::int64_t channels, float* y) {
    const Weights w(weights);
    const auto sum = [&](std::int64_t c) __attribute__((always_inline)) {
        return w.sum(corners[0] + c, corners[1] + c, corners[2] + c, corners[3] + c);
    };
    std::int64_t c = 0;
    for (; c + kWide <= channels; c += kWide) {
        store(y + c, sum(c));
    }
    if (c < channels) {
        store_part<float>(y + c, sum(c), channels - c);
    }
}

// Elements of planes, `stride` apart; a corner that is null reads 0.
inline void sum_planes(const float* const (&corners)[4], const float (&weights)[4], std::int64_t stride,
                       std::int64_t channels, float* y) {
    const Weights w(weights);
    float read[4][kWide] = {};
    for (std::int64_t c = 0; c < channels; c += kWide) {
        const std::int64_t some = std::min(kWide, channels - c);
        for (int corner = 0; corner < 4; ++corner) {
            if (const float* const from = corners[corner]; from != nullptr) {
                for (std::int64_t i = 0; i < some; ++i) {
                    read[corner][i] = from[(c + i) * stride];
                }
            }
        }
        store_part<float>(y + c, w.sum(read[0], read[1], read[2], read[3]), some);
    }
}

// Calls sum(corners, weights, y) for each point. `outside` is the corner that counts as 0; neighbouring elements of a
// plane are `step` apart.
template <class Sum>
inline void for_each_point(const LinearSamples& s, const float* outside, std::int64_t step, const Sum& sum) {
    Neighbours rows;
    Neighbours columns;
    for (std::int64_t begin = 0; begin < s.count; begin += kPoints) {
        const std::int64_t count = std::min(kPoints, s.count - begin);
        find_neighbours(s.rows + begin, count, s.height, s.border, rows);
        find_neighbours(s.columns + begin, count, s.width, s.border, columns);
        for (std::int64_t i = 0; i < count; ++i) {
            const float* corners[4];
            float weights[4];
            for (int corner = 0; corner < 4; ++corner) {
                const std::int64_t row = rows.place[corner / 2][i];
                const std::int64_t column = columns.place[corner % 2][i];
                corners[corner] = row < 0 || column < 0 ? outside : s.image + (row * s.width + column) * step;
                weights[corner] = rows.weight[corner / 2][i] * columns.weight[corner % 2][i];
            }
            sum(corners, weights, s.y + (begin + i) * s.channels);
        }
    }
}

void sample(const LinearSamples& s) {
    for_each_point(s, s.zeros, s.channels, [&](const auto& corners, const auto& weights, float* y) {
        sum_corners(corners, weights, s.channels, y);
    });
}

void sample_planes(const LinearSamples& s) {
    for_each_point(s, nullptr, 1, [&](const auto& corners, const auto& weights, float* y) {
        sum_planes(corners, weights, s.height * s.width, s.channels, y);
    });
}

// Several points of a single plane at a time.
void sample_plane(const LinearSamples& s) {
    using Places = Vector<std::int32_t>;
    Neighbours rows;
    Neighbours columns;
    const auto width = static_cast<std::int32_t>(s.width);
    for (std::int64_t begin = 0; begin < s.count; begin += kPoints) {
        const std::int64_t count = std::min(kPoints, s.count - begin);
        find_neighbours(s.rows + begin, count, s.height, s.border, rows);
        find_neighbours(s.columns + begin, count, s.width, s.border, columns);
        for (std::int64_t i = count; i % kWide != 0; ++i) {
            for (int side = 0; side < 2; ++side) {
                rows.place[side][i] = columns.place[side][i] = -1;
                rows.weight[side][i] = columns.weight[side][i] = 0;
            }
        }
        for (std::int64_t i = 0; i < count; i += kWide) {
            Weights weights;
            Lanes read[4];
#pragma GCC unroll 4
            for (int corner = 0; corner < 4; ++corner) {
                const Places row = load(rows.place[corner / 2] + i);
                const Places column = load(columns.place[corner % 2] + i);
                const Places places = (row | column) < 0 ? Places{} - 1 : row * width + column;
                weights.of[corner] = load(rows.weight[corner / 2] + i) * load(columns.weight[corner % 2] + i);
                read[corner] = gathered(s.image, places);
            }
            const Lanes sum = weights.sum(read[0], read[1], read[2], read[3]);
            if (count - i >= kWide) {
                store(s.y + begin + i, sum);
            } else {
                store_part<float>(s.y + begin + i, sum, count - i);
            }
        }
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(LinearSampleTable, linear_sample_table) = {kWide, sample, sample_planes, sample_plane};

}  // namespace graphkit
