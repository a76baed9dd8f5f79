#include "kernels/pool/lanes.h"

#include <algorithm>
#include <utility>

#include "runtime/threads.h"

namespace graphkit {
namespace {

// Elements of a plane in a block of several windows: kTogether at most. A block of one window may have kMostTogether.
constexpr std::int64_t kTogether = 1024;
constexpr std::int64_t kMostTogether = 4096;
// Transposing this many rows is much faster than transposing fewer.
constexpr std::int64_t kTileRows = 4;

}  // namespace

std::shared_ptr<const LanesPool> LanesPool::maximum(const PoolGeometry& geometry) {
    const std::shared_ptr<const LanesPool> made(new LanesPool(geometry, false));
    return made->together_ == 0 ? nullptr : made;
}

std::shared_ptr<const LanesPool> LanesPool::mean(const PoolGeometry& geometry, bool include_pad) {
    const std::shared_ptr<LanesPool> made(new LanesPool(geometry, true));
    if (made->together_ == 0) {
        return nullptr;
    }
    made->add_divisors(geometry, include_pad);
    return made;
}

std::int64_t LanesPool::floats() const {
    return static_cast<std::int64_t>(
        aligned(static_cast<std::size_t>((buffers_[0] + buffers_[1]) * functions_.lanes) * sizeof(float)) /
        sizeof(float));
}

bool LanesPool::Axis::is_identity() const {
    return count() == size && std::all_of(windows.begin(), windows.end(), [&](const PoolReach& reach) {
               return reach.count == 1 && reach.first == &reach - windows.data();
           });
}

// Leading axes with one position are moved to the end, because the first axis is divided into blocks.
LanesPool::LanesPool(const PoolGeometry& g, bool mean)
    : functions_(lanes_pool_functions()), transpose_(transpose_table().tile[2]), mean_(mean), planes_(g.planes) {
    if (planes_ == 0 || g.output_size() == 0 || g.input_size() == 0) {
        return;
    }
    std::size_t to = 0;
    std::int64_t stride = 1;
    for (int axis = 0; axis < 3; ++axis) {
        Axis made{g.input[axis], g.kernel[axis], g.dilation[axis], {}};
        for (const Span& span : g.windows[axis]) {
            const std::int64_t first = span.count() > 0 ? span.start + span.first * g.dilation[axis] : 0;
            made.windows.push_back({first, span.count()});
        }
        if (to > 0 || made.size > 1 || !made.is_identity()) {
            if (to == 0 && made.count() > 1) {
                stride = g.windows[axis][1].start - g.windows[axis][0].start;
            }
            axes_[to++] = std::move(made);
        }
    }
    for (; to < 3; ++to) {
        axes_[to].windows = {{0, 1}};
    }
    cut(stride);
}

std::array<std::int64_t, 4> LanesPool::stages(std::int64_t positions, std::int64_t windows) const {
    const std::int64_t along[3] = {axes_[0].size, axes_[1].size, axes_[2].size};
    return {positions * along[1] * along[2], windows * along[1] * along[2], windows * axes_[1].count() * along[2],
            windows * axes_[1].count() * axes_[2].count()};
}

void LanesPool::cut(std::int64_t stride) {
    const Axis& axis = axes_[0];
    std::int64_t taps = 0;
    for (const PoolReach& window : axis.windows) {
        taps = std::max(taps, window.count);
    }
    // The span of a whole window: neighbouring windows may lose their taps at opposite ends.
    const std::int64_t reach = taps == 0 ? 0 : (axis.kernel - 1) * axis.dilation + 1;
    const std::int64_t whole = (taps + kTileRows - 1) / kTileRows * kTileRows;
    apart_ = axis.dilation == 1 && stride >= 4 * whole ? whole : 0;
    const auto stages_of = [&](std::int64_t windows) {
        return stages(apart_ > 0 ? windows * apart_ : std::min(axis.size, (windows - 1) * stride + reach), windows);
    };
    const auto elements = [&](std::int64_t windows) {  // largest number of elements of a stage
        const auto sizes = stages_of(windows);
        return *std::max_element(sizes.begin(), sizes.end());
    };
    std::int64_t together = 1;
    while (together < axis.count() && elements(together + 1) <= kTogether) {
        ++together;
    }
    if (elements(together) > kMostTogether) {
        return;
    }
    together_ = together;
    for (std::int64_t w = 0; w < axis.count() && apart_ > 0; ++w) {
        copied_.push_back({w % together * apart_, axis.windows[static_cast<std::size_t>(w)].count});
    }
    const auto sizes = stages_of(together);
    std::size_t buffer = 0;
    buffers_[0] = sizes[0];
    for (std::size_t i = 0; i < 3; ++i) {
        combines_[i] = (i == 0 && blocks() > 1) || !axes_[i].is_identity();
        if (combines_[i]) {
            buffer = 1 - buffer;
            buffers_[buffer] = std::max(buffers_[buffer], sizes[i + 1]);
        }
    }
    group_nanoseconds_ = cost_of(sizes, static_cast<double>(axes_[0].count()) / static_cast<double>(together));
}

LanesPool::Block LanesPool::block(std::int64_t number) const {
    const Axis& axis = axes_[0];
    Block made{number * together_, std::min(axis.count(), (number + 1) * together_), axis.size, 0};
    for (std::int64_t w = made.begin; w < made.end; ++w) {
        const PoolReach& reach = axis.windows[static_cast<std::size_t>(w)];
        if (reach.count > 0) {
            made.first = std::min(made.first, reach.first);
            made.last = std::max(made.last, reach.first + (reach.count - 1) * axis.dilation + 1);
        }
    }
    made.first = std::min(made.first, made.last);
    return made;
}

void LanesPool::add_divisors(const PoolGeometry& g, bool include_pad) {
    for (const Span& depth : g.windows[0]) {
        for (const Span& height : g.windows[1]) {
            for (const Span& width : g.windows[2]) {
                divisors_.push_back(pool_divisor(include_pad, depth, height, width));
            }
        }
    }
}

// Estimated nanoseconds for `blocks` blocks. sizes: elements of each lane before and after each axis is combined.
double LanesPool::cost_of(const std::array<std::int64_t, 4>& sizes, double blocks) const {
    double combined = 0;
    for (std::size_t i = 0; i < 3; ++i) {
        std::int64_t taps = 0;
        for (const PoolReach& window : axes_[i].windows) {
            taps = std::max(taps, window.count);
        }
        combined += combines_[i] ? static_cast<double>(sizes[i + 1] * taps) : 0;
    }
    const auto lanes = static_cast<double>(functions_.lanes);
    return blocks * (60 + 0.105 * lanes * static_cast<double>(sizes[0] + sizes[3]) + 0.85 * combined);
}

double LanesPool::nanoseconds() const {
    return static_cast<double>((planes_ + functions_.lanes - 1) / functions_.lanes) * group_nanoseconds_;
}

std::size_t LanesPool::scratch_bytes(int threads) const {
    const std::int64_t groups = (planes_ + functions_.lanes - 1) / functions_.lanes;
    const std::int64_t sharing = std::clamp<std::int64_t>(groups * blocks(), 1, std::max(1, threads));
    return static_cast<std::size_t>(floats() * sharing) * sizeof(float);
}

// Pools `planes` adjacent planes, at most one for each lane, from x to y. The axes are combined one after the other.
void LanesPool::compute(const Block& block, std::int64_t planes, const float* x, float* y, float* memory) const {
    constexpr std::int64_t kSize = sizeof(float);
    const std::int64_t lanes = functions_.lanes;
    const std::int64_t inner = axes_[1].size * axes_[2].size;
    const std::int64_t windows = block.end - block.begin;
    const std::int64_t positions = apart_ > 0 ? windows * apart_ : block.last - block.first;
    float* from = memory;
    float* to = memory + buffers_[0] * lanes;
    const auto copy = [&](std::int64_t first, std::int64_t count, std::int64_t place) {
        transpose_(reinterpret_cast<const std::byte*>(x + first * inner),
                   reinterpret_cast<std::byte*>(from + place * inner * lanes), input_size() * kSize, lanes * kSize,
                   count * inner, planes, false);
    };
    if (apart_ == 0) {
        copy(block.first, positions, 0);
    }
    for (std::int64_t w = block.begin; w < block.end && apart_ > 0; ++w) {
        const PoolReach& window = axes_[0].windows[static_cast<std::size_t>(w)];
        copy(window.first, std::min(apart_, axes_[0].size - window.first), (w - block.begin) * apart_);
    }
    const auto pool = [&](LanesAxis axis) {
        axis.x = from;
        axis.y = to;
        (mean_ ? functions_.sum : functions_.maximum)(axis);
        std::swap(from, to);
    };
    if (combines_[0]) {
        const std::vector<PoolReach>& reaches = apart_ > 0 ? copied_ : axes_[0].windows;
        pool({nullptr, nullptr, 1, positions, apart_ > 0 ? 0 : block.first, inner, reaches.data() + block.begin,
              windows, axes_[0].dilation});
    }
    if (combines_[1]) {
        pool({nullptr, nullptr, windows, axes_[1].size, 0, axes_[2].size, axes_[1].windows.data(), axes_[1].count(),
              axes_[1].dilation});
    }
    if (combines_[2]) {
        pool({nullptr, nullptr, windows * axes_[1].count(), axes_[2].size, 0, 1, axes_[2].windows.data(),
              axes_[2].count(), axes_[2].dilation});
    }
    const std::int64_t line = axes_[1].count() * axes_[2].count();
    if (mean_) {
        functions_.divide(divisors_.data() + block.begin * line, windows * line, from);
    }
    transpose_(reinterpret_cast<const std::byte*>(from), reinterpret_cast<std::byte*>(y + block.begin * line),
               lanes * kSize, output_size() * kSize, planes, windows * line, false);
}

// Each thread computes blocks of windows of some planes.
void LanesPool::run(int threads, const float* x, float* y, std::byte* scratch) const {
    const std::int64_t lanes = functions_.lanes;
    const std::int64_t groups = (planes_ + lanes - 1) / lanes;
    const double cost = nanoseconds() / static_cast<double>(groups * blocks());
    parallel_calls(threads, groups * blocks(), cost, [&](std::int64_t begin, std::int64_t end) {
        float* const memory = reinterpret_cast<float*>(scratch) + thread_number() * floats();
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t plane = i / blocks() * lanes;
            compute(block(i % blocks()), std::min(lanes, planes_ - plane), x + plane * input_size(),
                    y + plane * output_size(), memory);
        }
    });
}

}  // namespace graphkit
