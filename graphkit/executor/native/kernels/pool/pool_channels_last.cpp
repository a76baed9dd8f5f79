#include "kernels/pool/pool_channels_last.h"

#include <vector>

#include "runtime/isa.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

Dims channels_behind(const Dims& dims) {
    Dims moved(dims);
    moved.erase(moved.begin() + 1);
    moved.push_back(dims[1]);
    return moved;
}

}  // namespace

ChannelsLastPool::ChannelsLastPool(Dims x, Dims y, const PoolWindow& window, PoolMode mode, int threads)
    : Kernel("ChannelsLastPool", threads),
      mode_(mode),
      functions_(pool_functions()) {
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

void ChannelsLastPool::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    const PoolGeometry& g = geometry_;
    const auto* x = static_cast<const float*>(inputs[0]);
    auto* y = static_cast<float*>(outputs[0]);
    const auto heights = static_cast<std::int64_t>(g.windows[1].size());
    const auto rows = static_cast<std::int64_t>(g.windows[0].size()) * heights;
    const std::int64_t row_size = g.row() * channels_;
    const double cost = 0.05 * static_cast<double>(row_size * g.kernel_size());
    parallel_for(threads(), batch_ * rows, cost, [&](std::int64_t begin, std::int64_t end) {
        std::int64_t few[64];
        std::vector<std::int64_t> many;
        std::int64_t* offsets = few;
        if (g.kernel_size() > 64) {
            many.resize(static_cast<std::size_t>(g.kernel_size()));
            offsets = many.data();
        }
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t image = i / rows;
            const std::int64_t at = i % rows;
            row(x + image * g.input_size() * channels_, y + i * row_size, at / heights, at % heights, offsets);
        }
    });
}

}  // namespace graphkit
