// The channels of one pooling window.
#include "kernels/pool/pool_channels_last.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

// Several vectors side by side, so that their chains of dependent operations overlap. `combine(sum, element)` gives the
// next sum, `finish` the result.
template <typename Combine, typename Finish>
void pool_channels(const float* x, const std::int64_t* offsets, std::int64_t taps, std::int64_t channels, float start,
                   float* y, Combine combine, Finish finish) {
    constexpr std::int64_t kWide = 4;
    constexpr std::int64_t kStep = kLanes<float>;
    std::int64_t c = 0;
    for (; c + kWide * kStep <= channels; c += kWide * kStep) {
        Vector<float> sums[kWide];
        for (auto& sum : sums) {
            sum = splat(start);
        }
        for (std::int64_t t = 0; t < taps; ++t) {
            const float* from = x + offsets[t] + c;
            for (std::int64_t i = 0; i < kWide; ++i) {
                sums[i] = combine(sums[i], load(from + i * kStep));
            }
        }
        for (std::int64_t i = 0; i < kWide; ++i) {
            store(y + c + i * kStep, finish(sums[i]));
        }
    }
    for (; c < channels; c += kStep) {
        const std::int64_t count = channels - c < kStep ? channels - c : kStep;
        Vector<float> sum = splat(start);
        for (std::int64_t t = 0; t < taps; ++t) {
            const float* from = x + offsets[t] + c;
            sum = combine(sum, count == kStep ? load(from) : load_part(from, count, start));
        }
        count == kStep ? store(y + c, finish(sum)) : store_part(y + c, finish(sum), count);
    }
}

void pool_maximum(const float* x, const std::int64_t* offsets, std::int64_t taps, std::int64_t channels, float* y) {
    pool_channels(
        x, offsets, taps, channels, -std::numeric_limits<float>::infinity(), y,
        [](Vector<float> a, Vector<float> b) { return Largest::combine(a, b); }, [](Vector<float> v) { return v; });
}

void pool_mean(const float* x, const std::int64_t* offsets, std::int64_t taps, std::int64_t channels, float factor,
               float* y) {
    pool_channels(
        x, offsets, taps, channels, 0.0F, y, [](Vector<float> a, Vector<float> b) { return a + b; },
        [factor](Vector<float> v) { return v * factor; });
}

}  // namespace

GRAPHKIT_ISA_DEFINE(PoolFunctions, pool_functions) = {pool_maximum, pool_mean};

}  // namespace graphkit
