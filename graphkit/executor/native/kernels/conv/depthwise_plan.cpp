#include "kernels/conv/depthwise_plan.h"

#include <numeric>

namespace graphkit {

DepthwisePlan::Axis::Axis(const PoolGeometry& geometry, int axis, bool transposed) {
    const std::vector<Span>& windows = geometry.windows[axis];
    const auto count = static_cast<std::int64_t>(windows.size());
    const auto for_each = [&](auto&& body) {
        for (std::int64_t w = 0; w < count; ++w) {
            const Span& span = windows[static_cast<std::size_t>(w)];
            for (std::int64_t k = span.first; k < span.last; ++k) {
                const std::int64_t position = span.start + k * geometry.dilation[axis];
                body(static_cast<std::size_t>(transposed ? position : w), Tap{transposed ? w : position, k});
            }
        }
    };
    first_.resize(static_cast<std::size_t>(transposed ? geometry.input[axis] : count) + 1);
    for_each([&](std::size_t place, const Tap&) { ++first_[place + 1]; });
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    taps_.resize(first_.back());
    std::vector<std::size_t> next = first_;
    for_each([&](std::size_t place, const Tap& tap) { taps_[next[place]++] = tap; });
}

DepthwisePlan::DepthwisePlan(const PoolGeometry& g, bool transposed) {
    for (int axis = 0; axis < 3; ++axis) {
        const auto windows = static_cast<std::int64_t>(g.windows[axis].size());
        kernel_[axis] = g.kernel[axis];
        input_[axis] = transposed ? windows : g.input[axis];
        output_[axis] = transposed ? g.input[axis] : windows;
        axes_[axis] = Axis(g, axis, transposed);
    }
    (transposed ? out_step_ : step_) = g.stride;
    for (std::int64_t residue = 0; residue < std::min(out_step_, output_[2]); ++residue) {
        for (std::int64_t place = residue; place < output_[2]; place += out_step_) {
            if (place != residue && continues(runs_.back(), axes_[2].at(place))) {
                ++runs_.back().count;
            } else {
                runs_.push_back({place, 1});
            }
        }
    }
}

bool DepthwisePlan::continues(const Run& run, std::span<const Tap> taps) const {
    const std::span<const Tap> first = axes_[2].at(run.first);
    const std::int64_t shift = run.count * step_;
    return std::equal(taps.begin(), taps.end(), first.begin(), first.end(),
                      [&](const Tap& a, const Tap& b) { return a.from == b.from + shift && a.element == b.element; });
}

}  // namespace graphkit
