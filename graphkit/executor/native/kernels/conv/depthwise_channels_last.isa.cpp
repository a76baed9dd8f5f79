// Depthwise convolution of runs of windows.
#include "kernels/conv/depthwise_channels_last.h"
#include "simd/channels.h"

namespace graphkit {
namespace {

// Loads what the next run reads behind `count` windows from number `first` on, while this one computes.
inline void fetch_ahead(const DepthwiseRun& run, const float* in, std::int64_t first, std::int64_t count) {
    constexpr std::int64_t kCacheLine = 64 / sizeof(float);
    for (std::int64_t row = 0; row < run.ahead_count; ++row) {
        const float* from = in + run.ahead[row] + first * run.step;
        for (std::int64_t at = 0; at < (count - 1) * run.step + run.channels; at += kCacheLine) {
            __builtin_prefetch(from + at, 0, 2);
        }
    }
}

// `Width` results side by side, so that an element of the filter is loaded once for them.
template <std::int64_t Width, typename Access>
inline void correlate_block(const DepthwiseRun& run, const float* in, const float* w, float* out, Access access) {
    Lane sums[Width] = {};
    for (std::int64_t t = 0; t < run.taps; ++t) {
        const Lane factor = access.read(w + run.numbers[t] * run.channels);
        const float* from = in + run.offsets[t];
        for (std::int64_t i = 0; i < Width; ++i) {
            sums[i] += access.read(from + i * run.step) * factor;
        }
    }
    for (std::int64_t i = 0; i < Width; ++i) {
        access.write(out + i * run.out_step, sums[i]);
    }
}

void correlate(const DepthwiseRun& run, const float* in, const float* w, float* out) {
    constexpr std::int64_t kWide = 6;
    std::int64_t i = 0;
    for (; i + kWide <= run.count; i += kWide) {
        fetch_ahead(run, in, i, kWide);
        over_channels(run.channels, [&](std::int64_t c, auto access) {
            correlate_block<kWide>(run, in + i * run.step + c, w + c, out + i * run.out_step + c, access);
        });
    }
    for (; i < run.count; ++i) {
        over_channels(run.channels, [&](std::int64_t c, auto access) {
            correlate_block<1>(run, in + i * run.step + c, w + c, out + i * run.out_step + c, access);
        });
    }
}

// Adds the sums of `Width` taps from number `first` on, over `count` windows.
template <std::int64_t Width, typename Access>
inline void add_block(const DepthwiseRun& run, std::int64_t first, std::int64_t count, const float* in,
                      const float* out, float* w, Access access) {
    Lane sums[Width];
    const float* from[Width];
    for (std::int64_t t = 0; t < Width; ++t) {
        from[t] = in + run.offsets[first + t];
        sums[t] = access.read(w + run.numbers[first + t] * run.channels);
    }
    for (std::int64_t i = 0; i < count; ++i) {
        const Lane factor = access.read(out + i * run.out_step);
        for (std::int64_t t = 0; t < Width; ++t) {
            sums[t] += access.read(from[t] + i * run.step) * factor;
        }
    }
    for (std::int64_t t = 0; t < Width; ++t) {
        access.write(w + run.numbers[first + t] * run.channels, sums[t]);
    }
}

void add_products(const DepthwiseRun& run, const float* in, const float* out, float* w) {
    constexpr std::int64_t kTaps = 9;
    constexpr std::int64_t kWindows = 16;
    for (std::int64_t i = 0; i < run.count; i += kWindows) {
        const std::int64_t count = run.count - i < kWindows ? run.count - i : kWindows;
        fetch_ahead(run, in, i, count);
        over_channels(run.channels, [&](std::int64_t c, auto access) {
            const float* here = in + i * run.step + c;
            const float* there = out + i * run.out_step + c;
            std::int64_t t = 0;
            for (; t + kTaps <= run.taps; t += kTaps) {
                add_block<kTaps>(run, t, count, here, there, w + c, access);
            }
            for (; t + 3 <= run.taps; t += 3) {
                add_block<3>(run, t, count, here, there, w + c, access);
            }
            for (; t < run.taps; ++t) {
                add_block<1>(run, t, count, here, there, w + c, access);
            }
        });
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(DepthwiseFunctions, depthwise_functions) = {correlate, add_products};

}  // namespace graphkit
