// Pooling of channels-last data: float32, one to three spatial dimensions, with vectors along the channels.
#include <cstdint>
#include <limits>

#include "runtime/isa.h"
#include "simd/vector.h"

namespace graphkit {

// Pool the channels of one window: combine `taps` rows of `channels` elements, at x + offsets[tap], into y.
struct PoolFunctions {
    // If an element is NaN, so is the maximum.
    void (*maximum)(const float* x, const std::int64_t* offsets, std::int64_t taps, std::int64_t channels, float* y);
    // y = the sum times `factor`.
    void (*mean)(const float* x, const std::int64_t* offsets, std::int64_t taps, std::int64_t channels, float factor,
                 float* y);
};

GRAPHKIT_ISA_TABLE(PoolFunctions, pool_functions);

// The channels of one pooling window.
namespace {

// Processes several vectors at once, so that their chains of dependent operations overlap. `combine(sum, element)`
// returns the next sum, `finish` the result.
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
        [](Vector<float> a, Vector<float> b) { return largest_of(a, b); }, [](Vector<float> v) { return v; });
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

#ifdef GRAPHKIT_ONCE
#include <algorithm>

#include "kernels/pool/pool.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// y [N, positions, C] from x [N, spatial, C]; shapes are given as [N, C, ...]. One thread computes all of a window.
class ChannelsLastPool final : public Kernel {
  public:
    ChannelsLastPool(Dims x, Dims y, const PoolWindow& window, PoolMode mode, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    // Bytes of the offsets of a window's elements.
    std::size_t offsets_bytes() const {
        return aligned(static_cast<std::size_t>(geometry_.most_inside()) * sizeof(std::int64_t));
    }
    void row(const float* x, float* y, std::int64_t depth, std::int64_t height, std::int64_t* offsets) const;

    PoolGeometry geometry_;
    PoolMode mode_;
    std::int64_t batch_;
    std::int64_t channels_;
    const PoolFunctions& functions_;
};

Dims channels_behind(const Dims& dims) {
    Dims moved(dims);
    moved.erase(moved.begin() + 1);
    moved.push_back(dims[1]);
    return moved;
}

}  // namespace

ChannelsLastPool::ChannelsLastPool(Dims x, Dims y, const PoolWindow& window, PoolMode mode, int threads)
    : Kernel("ChannelsLastPool", threads), mode_(mode), functions_(pool_functions()) {
    inputs_ = {{"x", x}};
    outputs_ = {{"y", y}};
    geometry_ = pool_geometry(*this, x, y, window);
    batch_ = x[0];
    channels_ = x[1];
    inputs_[0].shape = channels_behind(x);
    outputs_[0].shape = channels_behind(y);
}

void ChannelsLastPool::row(const float* x, float* y, std::int64_t depth, std::int64_t height,
                           std::int64_t* offsets) const {
    const PoolGeometry& g = geometry_;
    const Span& deep = g.windows[0][static_cast<std::size_t>(depth)];
    const Span& high = g.windows[1][static_cast<std::size_t>(height)];
    for (const Span& wide : g.windows[2]) {
        std::int64_t taps = 0;
        for (std::int64_t i = deep.first; i < deep.last; ++i) {
            const std::int64_t plane = (deep.start + i * g.dilation[0]) * g.input[1];
            for (std::int64_t j = high.first; j < high.last; ++j) {
                const std::int64_t line = (plane + high.start + j * g.dilation[1]) * g.input[2];
                for (std::int64_t k = wide.first; k < wide.last; ++k) {
                    offsets[taps++] = (line + wide.start + k * g.dilation[2]) * channels_;
                }
            }
        }
        if (mode_ == PoolMode::maximum) {
            functions_.maximum(x, offsets, taps, channels_, y);
        } else {
            const bool padded = mode_ == PoolMode::mean_with_padding;
            functions_.mean(x, offsets, taps, channels_, 1 / pool_divisor(padded, deep, high, wide), y);
        }
        y += channels_;
    }
}

std::size_t ChannelsLastPool::scratch_bytes() const {
    const auto rows = static_cast<std::int64_t>(geometry_.windows[0].size() * geometry_.windows[1].size());
    return offsets_bytes() *
           static_cast<std::size_t>(std::clamp<std::int64_t>(batch_ * rows, 1, std::max(1, threads())));
}

void ChannelsLastPool::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const PoolGeometry& g = geometry_;
    const auto* x = static_cast<const float*>(inputs[0]);
    auto* y = static_cast<float*>(outputs[0]);
    const auto heights = static_cast<std::int64_t>(g.windows[1].size());
    const auto rows = static_cast<std::int64_t>(g.windows[0].size()) * heights;
    const std::int64_t row_size = g.row() * channels_;
    const double cost = 0.05 * static_cast<double>(row_size * g.most_inside());
    parallel_for(threads(), batch_ * rows, cost, [&](std::int64_t begin, std::int64_t end) {
        auto* offsets =
            reinterpret_cast<std::int64_t*>(scratch + offsets_bytes() * static_cast<std::size_t>(thread_number()));
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t image = i / rows;
            const std::int64_t at = i % rows;
            row(x + image * g.input_size() * channels_, y + i * row_size, at / heights, at % heights, offsets);
        }
    });
}

std::unique_ptr<Kernel> make_channels_last_pool(const Dims& x, const Dims& y, const PoolWindow& window, PoolMode mode,
                                                int threads) {
    return std::make_unique<ChannelsLastPool>(x, y, window, mode, threads);
}

}  // namespace graphkit
#endif
