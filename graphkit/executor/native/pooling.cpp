#include "pooling.h"

#include <algorithm>
#include <atomic>
#include <cmath>

namespace graphkit {
namespace {

PoolGeometry make_geometry(const Step& step, const Dims& x, const Dims& y, const PoolWindow& window) {
    const auto fail = [&](const std::string& what) { throw NativeError(step.describe() + ": " + what); };
    if (x.size() < 3 || x.size() > 5 || y.size() != x.size()) {
        fail("one to three spatial dimensions on both sides are expected");
    }
    if (x[0] != y[0] || x[1] != y[1]) {
        fail("batch or channels differ");
    }
    const std::size_t spatial = x.size() - 2;
    for (const Dims* list :
         {&window.kernel, &window.strides, &window.dilations, &window.pads_begin, &window.pads_end}) {
        if (list->size() != spatial) {
            fail("kernel, strides, dilations and pads need " + std::to_string(spatial) + " entries each");
        }
    }
    PoolGeometry g;
    g.planes = x[0] * x[1];
    for (std::size_t i = 0; i < spatial; ++i) {
        const std::size_t to = 3 - spatial + i;
        g.input[to] = x[i + 2];
        g.output[to] = y[i + 2];
        g.kernel[to] = window.kernel[i];
        g.stride[to] = window.strides[i];
        g.dilation[to] = window.dilations[i];
        g.begin[to] = window.pads_begin[i];
        g.end[to] = window.pads_end[i];
        if (g.kernel[to] < 1 || g.stride[to] < 1 || g.dilation[to] < 1 || g.begin[to] < 0 || g.end[to] < 0) {
            fail("kernel, strides and dilations must be positive, pads at least 0");
        }
    }
    return g;
}

// The kernel positions of one window along one axis that fall into [0, size): first, last + 1, and how many fall into
// the padded extent.
struct Span {
    std::int64_t start;  // input position of kernel position 0
    std::int64_t first;
    std::int64_t last;
    std::int64_t padded;
};

Span span_of(const PoolGeometry& g, int axis, std::int64_t position) {
    const std::int64_t start = position * g.stride[axis] - g.begin[axis];
    const std::int64_t step = g.dilation[axis];
    const auto below = [&](std::int64_t limit) {  // how many kernel positions lie before `limit`
        return limit <= start ? 0 : std::min(g.kernel[axis], (limit - start + step - 1) / step);
    };
    const std::int64_t last = below(g.input[axis]);
    return {start, std::min(below(0), last), last, below(g.input[axis] + g.end[axis])};
}

// Calls body(output offset, spans) for every window of a plane.
template <typename Body>
void for_each_window(const PoolGeometry& g, Body&& body) {
    std::int64_t at = 0;
    for (std::int64_t d = 0; d < g.output[0]; ++d) {
        const Span depth = span_of(g, 0, d);
        for (std::int64_t h = 0; h < g.output[1]; ++h) {
            const Span height = span_of(g, 1, h);
            for (std::int64_t w = 0; w < g.output[2]; ++w) {
                body(at++, depth, height, span_of(g, 2, w));
            }
        }
    }
}

// Calls body(input offset) for every element of x under a window, in row-major order.
template <typename Body>
void for_each_element(const PoolGeometry& g, const Span& depth, const Span& height, const Span& width, Body&& body) {
    for (std::int64_t d = depth.first; d < depth.last; ++d) {
        const std::int64_t plane = (depth.start + d * g.dilation[0]) * g.input[1];
        for (std::int64_t h = height.first; h < height.last; ++h) {
            const std::int64_t row = (plane + height.start + h * g.dilation[1]) * g.input[2];
            for (std::int64_t w = width.first; w < width.last; ++w) {
                body(row + width.start + w * g.dilation[2]);
            }
        }
    }
}

// The position in x nearest to where a window starts.
std::int64_t inside(const PoolGeometry& g, int axis, const Span& span) {
    return std::clamp<std::int64_t>(span.start, 0, std::max<std::int64_t>(g.input[axis] - 1, 0));
}

std::int64_t to_column_major(const PoolGeometry& g, std::int64_t offset) {
    const std::int64_t w = offset % g.input[2];
    const std::int64_t h = offset / g.input[2] % g.input[1];
    const std::int64_t d = offset / (g.input[2] * g.input[1]);
    return (w * g.input[1] + h) * g.input[0] + d;
}

float divisor(bool include_pad, const Span& depth, const Span& height, const Span& width) {
    const auto extent = [&](const Span& span) { return include_pad ? span.padded : span.last - span.first; };
    return static_cast<float>(extent(depth) * extent(height) * extent(width));
}

std::size_t work(const PoolGeometry& g) {
    return static_cast<std::size_t>(g.planes * (g.output_size() * g.kernel_size() + g.input_size()));
}

}  // namespace

MaxPool::MaxPool(Dims x, Dims y, const PoolWindow& window, bool column_major, int threads)
    : Step("MaxPool", threads), column_major_(column_major) {
    inputs_ = {{"x", x}};
    outputs_ = {{"y", y, ElementType::f32, true}, {"indices", y, ElementType::i64, true}};
    geometry_ = make_geometry(*this, x, y, window);
}

void MaxPool::execute(Team&, std::span<const void* const> inputs, std::span<void* const> outputs, const Packed*) {
    const auto* x = static_cast<const float*>(inputs[0]);
    auto* y = static_cast<float*>(outputs[0]);
    auto* indices = static_cast<std::int64_t*>(outputs[1]);
    const PoolGeometry& g = geometry_;
#pragma omp parallel for schedule(static) num_threads(threads_for(work(g)))
    for (std::int64_t plane = 0; plane < g.planes; ++plane) {
        const float* values = x + plane * g.input_size();
        const std::int64_t to = plane * g.output_size();
        for_each_window(g, [&](std::int64_t at, const Span& depth, const Span& height, const Span& width) {
            float best = -INFINITY;
            std::int64_t where = -1;
            for_each_element(g, depth, height, width, [&](std::int64_t offset) {
                const float value = values[offset];
                if (value > best || where < 0 || (std::isnan(value) && !std::isnan(best))) {
                    best = value;
                    where = offset;
                }
            });
            if (y != nullptr) {
                y[to + at] = best;
            }
            if (indices != nullptr) {
                if (where < 0) {  // nothing but padding: the element of x closest to the window
                    where =
                        (inside(g, 0, depth) * g.input[1] + inside(g, 1, height)) * g.input[2] + inside(g, 2, width);
                }
                indices[to + at] = plane * g.input_size() + (column_major_ ? to_column_major(g, where) : where);
            }
        });
    }
}

MaxPoolGrad::MaxPoolGrad(Dims dy, Dims dx, int threads) : Step("MaxPoolGrad", threads) {
    inputs_ = {{"dy", dy}, {"indices", dy, ElementType::i64}};
    outputs_ = {{"dx", dx}};
    if (dy.size() < 2 || dx.size() < 2 || dy[0] != dx[0] || dy[1] != dx[1]) {
        throw NativeError(describe() + ": batch or channels differ");
    }
}

void MaxPoolGrad::execute(Team&, std::span<const void* const> inputs, std::span<void* const> outputs, const Packed*) {
    const auto* dy = static_cast<const float*>(inputs[0]);
    const auto* indices = static_cast<const std::int64_t*>(inputs[1]);
    auto* dx = static_cast<float*>(outputs[0]);
    const Dims& small = inputs_[0].shape;
    const Dims& large = outputs_[0].shape;
    const std::int64_t planes = small[0] * small[1];
    const std::int64_t from = count(Dims(small.begin() + 2, small.end()));
    const std::int64_t to = count(Dims(large.begin() + 2, large.end()));
    std::atomic<bool> outside{false};
#pragma omp parallel for schedule(static) num_threads(threads_for(static_cast<std::size_t>(planes * (from + to))))
    for (std::int64_t plane = 0; plane < planes; ++plane) {
        std::fill_n(dx + plane * to, to, 0.0F);
        for (std::int64_t i = plane * from; i < (plane + 1) * from; ++i) {
            const std::int64_t index = indices[i];
            if (index < plane * to || index >= (plane + 1) * to) {
                outside.store(true, std::memory_order_relaxed);
                continue;
            }
            dx[index] += dy[i];
        }
    }
    if (outside.load()) {
        throw NativeError(describe() + ": an index lies outside the plane of its window");
    }
}

AveragePool::AveragePool(Dims x, Dims y, const PoolWindow& window, bool include_pad, int threads)
    : Step("AveragePool", threads), include_pad_(include_pad) {
    inputs_ = {{"x", x}};
    outputs_ = {{"y", y}};
    geometry_ = make_geometry(*this, x, y, window);
}

void AveragePool::execute(Team&, std::span<const void* const> inputs, std::span<void* const> outputs, const Packed*) {
    const auto* x = static_cast<const float*>(inputs[0]);
    auto* y = static_cast<float*>(outputs[0]);
    const PoolGeometry& g = geometry_;
#pragma omp parallel for schedule(static) num_threads(threads_for(work(g)))
    for (std::int64_t plane = 0; plane < g.planes; ++plane) {
        const float* values = x + plane * g.input_size();
        float* results = y + plane * g.output_size();
        for_each_window(g, [&](std::int64_t at, const Span& depth, const Span& height, const Span& width) {
            float total = 0;
            for_each_element(g, depth, height, width, [&](std::int64_t offset) { total += values[offset]; });
            results[at] = total / divisor(include_pad_, depth, height, width);
        });
    }
}

AveragePoolGrad::AveragePoolGrad(Dims dy, Dims dx, const PoolWindow& window, bool include_pad, int threads)
    : Step("AveragePoolGrad", threads), include_pad_(include_pad) {
    inputs_ = {{"dy", dy}};
    outputs_ = {{"dx", dx}};
    geometry_ = make_geometry(*this, dx, dy, window);
}

void AveragePoolGrad::execute(Team&, std::span<const void* const> inputs, std::span<void* const> outputs,
                              const Packed*) {
    const auto* dy = static_cast<const float*>(inputs[0]);
    auto* dx = static_cast<float*>(outputs[0]);
    const PoolGeometry& g = geometry_;
#pragma omp parallel for schedule(static) num_threads(threads_for(work(g)))
    for (std::int64_t plane = 0; plane < g.planes; ++plane) {
        float* results = dx + plane * g.input_size();
        std::fill_n(results, g.input_size(), 0.0F);
        const float* values = dy + plane * g.output_size();
        for_each_window(g, [&](std::int64_t at, const Span& depth, const Span& height, const Span& width) {
            const float share = values[at] / divisor(include_pad_, depth, height, width);
            for_each_element(g, depth, height, width, [&](std::int64_t offset) { results[offset] += share; });
        });
    }
}

}  // namespace graphkit
