#include "kernels/pool/pool.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "kernels/pool/plane_loops.h"
#include "kernels/pool/vector_pool.h"
#include "runtime/bindings.h"
#include "runtime/recipe.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// The span of the window at `position`, along an axis with `size` positions and padding of `begin` and `end`.
Span span_of(std::int64_t position, std::int64_t stride, std::int64_t kernel, std::int64_t dilation, std::int64_t size,
             std::int64_t begin, std::int64_t end) {
    const std::int64_t start = position * stride - begin;
    const auto before = [&](std::int64_t limit) {  // number of kernel positions before `limit`
        return limit <= start ? 0 : std::min(kernel, (limit - start + dilation - 1) / dilation);
    };
    const std::int64_t last = before(size);
    return {start, std::min(before(0), last), last, before(size + end)};
}

// Returns, in ascending order, the kernel elements that are inside of the input for some window along an axis. A kernel
// may be much larger than the input.
std::vector<std::int64_t> elements_inside(const std::vector<Span>& windows) {
    std::vector<std::int64_t> found;
    std::int64_t next = 0;
    // later windows have earlier kernel elements inside
    for (auto span = windows.rbegin(); span != windows.rend(); ++span) {
        for (std::int64_t k = std::max(next, span->first); k < span->last; ++k) {
            found.push_back(k);
        }
        next = std::max(next, span->last);
    }
    return found;
}

// The position in x of a window's first element that is not padding, if there is one.
std::int64_t first_inside(const PoolGeometry& g, int axis, const Span& span) {
    return span.start + span.first * g.dilation[axis];
}

std::int64_t to_column_major(const PoolGeometry& g, std::int64_t offset) {
    if (g.input[1] == 0 || g.input[2] == 0) {
        return 0;  // all windows are padding
    }
    const std::int64_t w = offset % g.input[2];
    const std::int64_t h = offset / g.input[2] % g.input[1];
    const std::int64_t d = offset / (g.input[2] * g.input[1]);
    return (w * g.input[1] + h) * g.input[0] + d;
}

// Adds one tap to a row of maxima: `best` and `where` change where the tap's element is greater, or is NaN and `best`
// is not.
void keep_greater(const float* values, std::int64_t row, const Tap& tap, std::int64_t stride, float* best,
                  std::int32_t* where) {
#pragma omp simd
    for (std::int64_t w = tap.first; w < tap.last; ++w) {
        const std::int64_t offset = row + w * stride;
        const float value = values[offset];
        const bool better = !(value <= best[w]) & !std::isnan(best[w]);
        best[w] = better ? value : best[w];
        where[w] = better ? static_cast<std::int32_t>(offset) : where[w];
    }
}

// Removes trailing axes with one element, which windows do not change, so that rows are longer.
PoolGeometry without_trailing_axes(const Kernel& kernel, Dims x, Dims y, PoolWindow window) {
    while (x.size() > 3 && x.back() == 1 && y.back() == 1 && window.kernel.back() == 1 &&
           window.pads_begin.back() == 0 && window.pads_end.back() == 0) {
        x.pop_back();
        y.pop_back();
        for (Dims* list : {&window.kernel, &window.strides, &window.dilations, &window.pads_begin, &window.pads_end}) {
            list->pop_back();
        }
    }
    return pool_geometry(kernel, x, y, window);
}

// Number of threads that can pool planes at the same time.
std::size_t working_threads(const Kernel& kernel, const PoolGeometry& g) {
    return static_cast<std::size_t>(std::clamp<std::int64_t>(g.planes, 1, std::max(1, kernel.threads())));
}

}  // namespace

PoolGeometry pool_geometry(const Kernel& kernel, const Dims& x, const Dims& y, const PoolWindow& window) {
    const auto fail = [&](const std::string& what) { throw NativeError(kernel.describe() + ": " + what); };
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
    const bool empty = std::find(y.begin(), y.end(), 0) != y.end();
    for (std::size_t axis = 0; axis < 3 - spatial; ++axis) {
        g.windows[axis] = {Span{0, 0, 1, 1}};
    }
    for (std::size_t i = 0; i < spatial; ++i) {
        const std::size_t axis = 3 - spatial + i;
        const std::int64_t stride = window.strides[i];
        const std::int64_t begin = window.pads_begin[i];
        const std::int64_t end = window.pads_end[i];
        g.input[axis] = x[i + 2];
        g.kernel[axis] = window.kernel[i];
        g.dilation[axis] = window.dilations[i];
        if (g.kernel[axis] < 1 || stride < 1 || g.dilation[axis] < 1 || begin < 0 || end < 0) {
            fail("kernel, strides and dilations must be positive, pads at least 0");
        }
        const std::int64_t windows = empty ? 0 : y[i + 2];
        if (std::max({g.kernel[axis], stride, g.dilation[axis], begin, end, x[i + 2], windows}) >
            std::numeric_limits<std::int32_t>::max()) {
            throw Unsupported(kernel.describe() + ": axes or windows of 2^31 positions and more");
        }
        g.windows[axis].reserve(static_cast<std::size_t>(windows));
        // If the result is empty there are no windows, even if one of its axes has positions.
        for (std::int64_t position = 0; position < windows; ++position) {
            g.windows[axis].push_back(
                span_of(position, stride, g.kernel[axis], g.dilation[axis], g.input[axis], begin, end));
        }
        g.stride = stride;
    }
    for (const std::int64_t k : elements_inside(g.windows[2])) {
        const auto lacks = [&](const Span& span) { return k < span.first; };
        const auto reaches = [&](const Span& span) { return k < span.last; };
        const auto first = std::partition_point(g.windows[2].begin(), g.windows[2].end(), lacks);
        const auto last = std::partition_point(first, g.windows[2].end(), reaches);
        if (first != last) {
            const std::int64_t at = first - g.windows[2].begin();
            g.taps.push_back({at, last - g.windows[2].begin(), first->start + k * g.dilation[2] - at * g.stride});
        }
    }
    return g;
}

float pool_divisor(bool include_pad, const Span& depth, const Span& height, const Span& width) {
    const auto extent = [&](const Span& span) { return include_pad ? span.padded : span.count(); };
    return static_cast<float>(extent(depth) * extent(height) * extent(width));
}

MaxPool::MaxPool(Dims x, Dims y, const PoolWindow& window, bool column_major, bool with_indices, int threads)
    : Kernel("MaxPool", threads), column_major_(column_major) {
    inputs_ = {{"x", x}};
    outputs_ = {{"y", y, ElementType::f32, true}, {"indices", y, ElementType::i64, true}};
    geometry_ = pool_geometry(*this, x, y, window);
    if (geometry_.input_size() > std::numeric_limits<std::int32_t>::max()) {
        throw Unsupported(describe() + ": planes of 2^31 elements and more");
    }
    if (!with_indices) {
        vectors_ = VectorPool::maximum(without_trailing_axes(*this, x, y, window));
    }
}

// Bytes of a row of maxima and their positions.
std::size_t MaxPool::row_bytes() const {
    return aligned(static_cast<std::size_t>(geometry_.row()) * (sizeof(float) + sizeof(std::int32_t)));
}

std::size_t MaxPool::scratch_bytes() const {
    const std::size_t rows = row_bytes() * working_threads(*this, geometry_);
    return vectors_ == nullptr ? rows : std::max(rows, vectors_->scratch_bytes(threads()));
}

std::string MaxPool::implementation() const {
    return vectors_ == nullptr ? Kernel::implementation() : vectors_->name();
}

void MaxPool::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const auto* x = static_cast<const float*>(inputs[0]);
    auto* y = static_cast<float*>(outputs[0]);
    auto* indices = static_cast<std::int64_t*>(outputs[1]);
    if (indices == nullptr && vectors_ != nullptr) {
        vectors_->run(threads(), x, y, scratch);
        return;
    }
    const PoolGeometry& g = geometry_;
    parallel_for(threads(), g.planes, plane_cost(g), [&](std::int64_t begin, std::int64_t end) {
        const auto row_size = static_cast<std::size_t>(g.row());
        auto* best = reinterpret_cast<float*>(scratch + static_cast<std::size_t>(thread_number()) * row_bytes());
        auto* where = reinterpret_cast<std::int32_t*>(best + row_size);
        for (std::int64_t plane = begin; plane < end; ++plane) {
            const float* values = x + plane * g.input_size();
            for_each_row(g, [&](std::int64_t at, const Span& depth, const Span& height) {
                // If all elements are -inf, the position is that of the first one; if all are padding, 0.
                const bool some = depth.count() > 0 && height.count() > 0;
                const std::int64_t corner =
                    (first_inside(g, 0, depth) * g.input[1] + first_inside(g, 1, height)) * g.input[2];
                for (std::size_t w = 0; w < row_size; ++w) {
                    const Span& width = g.windows[2][w];
                    best[w] = -INFINITY;
                    where[w] =
                        some && width.count() > 0 ? static_cast<std::int32_t>(corner + first_inside(g, 2, width)) : 0;
                }
                for_each_tap(g, depth, height, [&](std::int64_t row, const Tap& tap) {
                    keep_greater(values, row, tap, g.stride, best, where);
                });
                const std::int64_t to = plane * g.output_size() + at;
                if (y != nullptr) {
                    std::copy_n(best, row_size, y + to);
                }
                if (indices != nullptr) {
                    for (std::size_t w = 0; w < row_size; ++w) {
                        const std::int64_t offset = column_major_ ? to_column_major(g, where[w]) : where[w];
                        indices[to + static_cast<std::int64_t>(w)] = plane * g.input_size() + offset;
                    }
                }
            });
        }
    });
}

MaxPoolGrad::MaxPoolGrad(Dims dy, Dims dx, int threads) : Kernel("MaxPoolGrad", threads) {
    inputs_ = {{"dy", dy}, {"indices", dy, ElementType::i64}};
    outputs_ = {{"dx", dx}};
    if (dy.size() < 2 || dx.size() < 2 || dy[0] != dx[0] || dy[1] != dx[1]) {
        throw NativeError(describe() + ": batch or channels differ");
    }
}

void MaxPoolGrad::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    const auto* dy = static_cast<const float*>(inputs[0]);
    const auto* indices = static_cast<const std::int64_t*>(inputs[1]);
    auto* dx = static_cast<float*>(outputs[0]);
    const Dims& small = inputs_[0].shape;
    const Dims& large = outputs_[0].shape;
    const std::int64_t planes = small[0] * small[1];
    const std::int64_t from = count(Dims(small.begin() + 2, small.end()));
    const std::int64_t to = count(Dims(large.begin() + 2, large.end()));
    std::atomic<bool> outside{false};
    const double cost = 0.3 * static_cast<double>(from + to);
    parallel_for(threads(), planes, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t plane = begin; plane < end; ++plane) {
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
    });
    if (outside.load()) {
        throw NativeError(describe() + ": an index lies outside the plane of its window");
    }
}

AveragePool::AveragePool(Dims x, Dims y, const PoolWindow& window, bool include_pad, int threads)
    : Kernel("AveragePool", threads), include_pad_(include_pad) {
    inputs_ = {{"x", x}};
    outputs_ = {{"y", y}};
    geometry_ = pool_geometry(*this, x, y, window);
    vectors_ = VectorPool::mean(without_trailing_axes(*this, x, y, window), include_pad);
}

std::size_t AveragePool::scratch_bytes() const {
    return vectors_ == nullptr ? 0 : vectors_->scratch_bytes(threads());
}

std::string AveragePool::implementation() const {
    return vectors_ == nullptr ? Kernel::implementation() : vectors_->name();
}

void AveragePool::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const auto* x = static_cast<const float*>(inputs[0]);
    auto* y = static_cast<float*>(outputs[0]);
    if (vectors_ != nullptr) {
        vectors_->run(threads(), x, y, scratch);
        return;
    }
    const PoolGeometry& g = geometry_;
    parallel_for(threads(), g.planes, plane_cost(g), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t plane = begin; plane < end; ++plane) {
            const float* values = x + plane * g.input_size();
            for_each_row(g, [&](std::int64_t at, const Span& depth, const Span& height) {
                float* total = y + plane * g.output_size() + at;
                std::fill_n(total, g.row(), 0.0F);
                for_each_tap(g, depth, height, [&](std::int64_t row, const Tap& tap) {
#pragma omp simd
                    for (std::int64_t w = tap.first; w < tap.last; ++w) {
                        total[w] += values[row + w * g.stride];
                    }
                });
                for (std::int64_t w = 0; w < g.row(); ++w) {
                    total[w] /= pool_divisor(include_pad_, depth, height, g.windows[2][static_cast<std::size_t>(w)]);
                }
            });
        }
    });
}

LpPool::LpPool(Dims x, Dims y, const PoolWindow& window, std::int64_t p, int threads)
    : Kernel("LpPool", threads), p_(p) {
    inputs_ = {{"x", x}};
    outputs_ = {{"y", y}};
    geometry_ = pool_geometry(*this, x, y, window);
}

template <typename Power, typename Root>
void LpPool::run_with(const float* x, float* y, Power power, Root root) const {
    const PoolGeometry& g = geometry_;
    parallel_for(threads(), g.planes, plane_cost(g), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t plane = begin; plane < end; ++plane) {
            const float* values = x + plane * g.input_size();
            for_each_row(g, [&](std::int64_t at, const Span& depth, const Span& height) {
                float* total = y + plane * g.output_size() + at;
                std::fill_n(total, g.row(), 0.0F);
                for_each_tap(g, depth, height, [&](std::int64_t row, const Tap& tap) {
                    for (std::int64_t w = tap.first; w < tap.last; ++w) {
                        total[w] += power(std::abs(values[row + w * g.stride]));
                    }
                });
                std::transform(total, total + g.row(), total, root);
            });
        }
    });
}

void LpPool::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    const auto* x = static_cast<const float*>(inputs[0]);
    auto* y = static_cast<float*>(outputs[0]);
    const auto p = static_cast<float>(p_);
    if (p_ == 1) {
        run_with(x, y, [](float v) { return v; }, [](float v) { return v; });
    } else if (p_ == 2) {
        run_with(x, y, [](float v) { return v * v; }, [](float v) { return std::sqrt(v); });
    } else {
        run_with(x, y, [p](float v) { return std::pow(v, p); }, [p](float v) { return std::pow(v, 1 / p); });
    }
}

AveragePoolGrad::AveragePoolGrad(Dims dy, Dims dx, const PoolWindow& window, bool include_pad, int threads)
    : Kernel("AveragePoolGrad", threads), include_pad_(include_pad) {
    inputs_ = {{"dy", dy}};
    outputs_ = {{"dx", dx}};
    geometry_ = pool_geometry(*this, dx, dy, window);
}

std::size_t AveragePoolGrad::row_bytes() const {
    return aligned(static_cast<std::size_t>(geometry_.row()) * sizeof(float));
}

std::size_t AveragePoolGrad::scratch_bytes() const {
    return row_bytes() * working_threads(*this, geometry_);
}

void AveragePoolGrad::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const auto* dy = static_cast<const float*>(inputs[0]);
    auto* dx = static_cast<float*>(outputs[0]);
    const PoolGeometry& g = geometry_;
    parallel_for(threads(), g.planes, plane_cost(g), [&](std::int64_t begin, std::int64_t end) {
        const auto row_size = static_cast<std::size_t>(g.row());
        auto* share = reinterpret_cast<float*>(scratch + static_cast<std::size_t>(thread_number()) * row_bytes());
        for (std::int64_t plane = begin; plane < end; ++plane) {
            float* results = dx + plane * g.input_size();
            std::fill_n(results, g.input_size(), 0.0F);
            for_each_row(g, [&](std::int64_t at, const Span& depth, const Span& height) {
                const float* values = dy + plane * g.output_size() + at;
                for (std::size_t w = 0; w < row_size; ++w) {
                    share[w] = values[w] / pool_divisor(include_pad_, depth, height, g.windows[2][w]);
                }
                for_each_tap(g, depth, height, [&](std::int64_t row, const Tap& tap) {
                    for (std::int64_t w = tap.first; w < tap.last; ++w) {
                        results[row + w * g.stride] += share[w];
                    }
                });
            });
        }
    });
}

static const RecipeConstructor<MaxPoolGrad, Dims, Dims, int> max_pool_grad_recipe("MaxPoolGrad");
static const RecipeConstructor<AveragePoolGrad, Dims, Dims, const PoolWindow&, bool, int> average_pool_grad_recipe(
    "AveragePoolGrad");

GRAPHKIT_BINDINGS(pool) {
    nb::class_<PoolWindow>(m, "PoolWindow")
        .def(nb::init<Dims, Dims, Dims, Dims, Dims>(), "kernel"_a, "strides"_a, "dilations"_a, "pads_begin"_a,
             "pads_end"_a);
    nb::class_<MaxPool, Kernel>(m, "MaxPool")
        .def(nb::init<Dims, Dims, const PoolWindow&, bool, bool, int>(), "x"_a, "y"_a, "window"_a,
             "column_major"_a = false, "with_indices"_a = false, "threads"_a = 0);
    nb::class_<MaxPoolGrad, Kernel>(m, "MaxPoolGrad")
        .def("__init__", max_pool_grad_recipe.init(), "dy"_a, "dx"_a, "threads"_a = 0);
    nb::class_<AveragePool, Kernel>(m, "AveragePool")
        .def(nb::init<Dims, Dims, const PoolWindow&, bool, int>(), "x"_a, "y"_a, "window"_a, "include_pad"_a = false,
             "threads"_a = 0);
    nb::class_<LpPool, Kernel>(m, "LpPool")
        .def(nb::init<Dims, Dims, const PoolWindow&, std::int64_t, int>(), "x"_a, "y"_a, "window"_a, "p"_a = 2,
             "threads"_a = 0);
    nb::class_<AveragePoolGrad, Kernel>(m, "AveragePoolGrad")
        .def("__init__", average_pool_grad_recipe.init(), "dy"_a, "dx"_a, "window"_a, "include_pad"_a = false,
             "threads"_a = 0);
}

}  // namespace graphkit
