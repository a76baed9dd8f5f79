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

inline void sum_corners(const float* const (&corners)[4], const float (&weights)[4], std::int64_t channels, float* y) {
    const Lanes w[4] = {splat(weights[0]), splat(weights[1]), splat(weights[2]), splat(weights[3])};
    const auto sum = [&](std::int64_t c) __attribute__((always_inline)) {
        return (w[0] * load(corners[0] + c) + w[1] * load(corners[1] + c)) +
               (w[2] * load(corners[2] + c) + w[3] * load(corners[3] + c));
    };
    std::int64_t c = 0;
    for (; c + kWide <= channels; c += kWide) {
        store(y + c, sum(c));
    }
    if (c < channels) {
        store_part<float>(y + c, sum(c), channels - c);
    }
}

void sample(const LinearSamples& s) {
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
                corners[corner] = row < 0 || column < 0 ? s.zeros : s.image + (row * s.width + column) * s.channels;
                weights[corner] = rows.weight[corner / 2][i] * columns.weight[corner % 2][i];
            }
            sum_corners(corners, weights, s.channels, s.y + (begin + i) * s.channels);
        }
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(LinearSampleTable, linear_sample_table) = {kWide, sample};

}  // namespace graphkit
