// Max pooling that records which element of a window was the maximum, and the gradients of pooling: float32, channels
// last. Each element of a gradient gathers from the windows that contain it, so that one thread computes all of a row.
#include <cstdint>
#include <limits>

#include "runtime/isa.h"
#include "simd/vector.h"

namespace graphkit {

// A window that contains a given position: the offset of its channels in dy, and which of its elements the position is.
struct PoolSource {
    std::int64_t offset;
    std::int32_t tap;
    float factor;  // of dy, in the gradient of a mean
};

struct PoolGradientFunctions {
    // y = the maxima of `count` rows of channels at x + offsets[i]; chosen = numbers[i] of the first maximum. Either
    // may be null, and is then not computed.
    void (*maximum)(const float* x, const std::int64_t* offsets, const std::int32_t* numbers, std::int64_t count,
                    std::int64_t channels, float* y, std::uint8_t* chosen);
    // dx = the sum of dy over those sources whose tap is `chosen`.
    void (*gather_chosen)(const float* dy, const std::uint8_t* chosen, const PoolSource* sources, std::int64_t count,
                          std::int64_t channels, float* dx);
    // dx = the sum of dy * factor over the sources.
    void (*gather_shares)(const float* dy, const PoolSource* sources, std::int64_t count, std::int64_t channels,
                          float* dx);
};

GRAPHKIT_ISA_TABLE(PoolGradientFunctions, pool_gradient_functions);

// The channels of one pooling window with the place of its maximum, and of one position of a gradient.
namespace {

using Lane = Vector<float>;
constexpr std::int64_t kLane = kLanes<float>;
using Ints = Vector<std::int32_t>;
using Bytes = VectorOf<std::uint8_t, kLane>::type;

// Calls body(first channel, number of channels) for vectors of channels. The last two may overlap, so the result must
// not depend on what body wrote before.
template <typename Body>
void for_each_vector(std::int64_t channels, Body&& body) {
    std::int64_t c = 0;
    for (; c + kLane <= channels; c += kLane) {
        body(c, kLane);
    }
    if (c < channels) {
        channels >= kLane ? body(channels - kLane, kLane) : body(c, channels - c);
    }
}

Lane read(const float* from, std::int64_t count) {
    return count == kLane ? load(from) : load_part(from, count, 0.0F);
}

void write(float* to, Lane v, std::int64_t count) {
    count == kLane ? store(to, v) : store_part(to, v, count);
}

Ints read_bytes(const std::uint8_t* from, std::int64_t count) {
    Bytes bytes{};
    if (count == kLane) {
        __builtin_memcpy(&bytes, from, sizeof bytes);
    } else {
        for (std::int64_t i = 0; i < kLane; ++i) {
            bytes[i] = i < count ? from[i] : std::uint8_t{0};
        }
    }
    return __builtin_convertvector(bytes, Ints);
}

void write_bytes(std::uint8_t* to, Ints v, std::int64_t count) {
    const Bytes bytes = __builtin_convertvector(v, Bytes);
    if (count == kLane) {
        __builtin_memcpy(to, &bytes, sizeof bytes);
    } else {
        for (std::int64_t i = 0; i < kLane && i < count; ++i) {
            to[i] = bytes[i];
        }
    }
}

void pool_maximum(const float* x, const std::int64_t* offsets, const std::int32_t* numbers, std::int64_t count,
                  std::int64_t channels, float* y, std::uint8_t* chosen) {
    for_each_vector(channels, [&](std::int64_t c, std::int64_t part) {
        Lane best = splat(-std::numeric_limits<float>::infinity());
        Ints where{};
        if (count > 0) {
            best = read(x + offsets[0] + c, part);
            where = splat(numbers[0]);
        }
        for (std::int64_t i = 1; i < count; ++i) {
            const Lane v = read(x + offsets[i] + c, part);
            const Ints better = (v > best) | ((v != v) & (best == best));
            best = better ? v : best;
            where = better ? splat(numbers[i]) : where;
        }
        if (y != nullptr) {
            write(y + c, best, part);
        }
        if (chosen != nullptr) {
            write_bytes(chosen + c, where, part);
        }
    });
}

void gather_chosen(const float* dy, const std::uint8_t* chosen, const PoolSource* sources, std::int64_t count,
                   std::int64_t channels, float* dx) {
    for_each_vector(channels, [&](std::int64_t c, std::int64_t part) {
        Lane total{};
        for (std::int64_t i = 0; i < count; ++i) {
            const Ints tap = read_bytes(chosen + sources[i].offset + c, part);
            const Lane v = read(dy + sources[i].offset + c, part);
            total += tap == splat(sources[i].tap) ? v : Lane{};
        }
        write(dx + c, total, part);
    });
}

void gather_shares(const float* dy, const PoolSource* sources, std::int64_t count, std::int64_t channels, float* dx) {
    for_each_vector(channels, [&](std::int64_t c, std::int64_t part) {
        Lane total{};
        for (std::int64_t i = 0; i < count; ++i) {
            total += read(dy + sources[i].offset + c, part) * sources[i].factor;
        }
        write(dx + c, total, part);
    });
}

}  // namespace

GRAPHKIT_ISA_DEFINE(PoolGradientFunctions, pool_gradient_functions) = {pool_maximum, gather_chosen, gather_shares};

}  // namespace graphkit

#ifdef GRAPHKIT_ONCE
#include "kernels/pool/pool.h"
#include "runtime/bindings.h"
#include "runtime/recipe.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// y [N, positions, C] from x [N, spatial, C], and the number of each maximum in its window, in row-major order: a
// window has at most 256 elements. Shapes are given as [N, C, ...]. The first of equal values counts. If an element is
// NaN, so is the maximum. An unused output may be null.
class ChannelsLastMaxPoolIndices final : public Kernel {
  public:
    ChannelsLastMaxPoolIndices(Dims x, Dims y, const PoolWindow& window, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    PoolGeometry geometry_;
    std::int64_t batch_;
    std::int64_t channels_;
    const PoolGradientFunctions& functions_;
};

// Base of the gradients of both poolings: for each position along an axis, it has the windows that contain the
// position.
class ChannelsLastPoolGrad : public Kernel {
  protected:
    struct Holder {
        std::int64_t window;
        std::int32_t element;
    };
    // A row of windows that contains a line of positions: its offset in dy, and the tap of its first element.
    struct Row {
        std::int64_t from;
        std::int32_t tap;
        std::int64_t depth, height;
    };

    ChannelsLastPoolGrad(const char* name, const Dims& dy, const Dims& dx, const PoolWindow& window, int threads);

    // Calls body(first source, count, offset of the position in dx) for all positions. `factor(depth, height, width)`
    // returns the factor of a window.
    template <typename Factor, typename Body>
    void for_each_position(std::byte* scratch, Factor&& factor, Body&& body) const;
    std::size_t scratch_bytes() const final;

    PoolGeometry geometry_;
    std::int64_t batch_;
    std::int64_t channels_;
    const PoolGradientFunctions& functions_;

  private:
    std::vector<std::vector<Holder>> holders_[3];
    std::size_t sources_bytes() const { return aligned(most_ * sizeof(PoolSource)); }
    // Bytes of the sources of a position, and of the rows of windows that contain a line.
    std::size_t own_bytes() const { return sources_bytes() + aligned(most_rows_ * sizeof(Row)); }

    std::size_t most_ = 1;  // most sources of a position
    std::size_t most_rows_ = 1;  // most rows of windows that contain a line
};

class ChannelsLastMaxPoolGrad final : public ChannelsLastPoolGrad {
  public:
    ChannelsLastMaxPoolGrad(Dims dy, Dims dx, const PoolWindow& window, int threads);
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
};

class ChannelsLastAveragePoolGrad final : public ChannelsLastPoolGrad {
  public:
    ChannelsLastAveragePoolGrad(Dims dy, Dims dx, const PoolWindow& window, bool include_pad, int threads);
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    bool include_pad_;
};

constexpr std::int64_t kMostTaps = 256;

Dims channels_behind(const Dims& dims) {
    Dims moved(dims);
    moved.erase(moved.begin() + 1);
    moved.push_back(dims[1]);
    return moved;
}

void check_taps(const Kernel& kernel, const PoolGeometry& g) {
    if (std::max({g.kernel[0], g.kernel[1], g.kernel[2]}) > kMostTaps ||
        g.kernel[0] * g.kernel[1] * g.kernel[2] > kMostTaps) {
        throw Unsupported(kernel.describe() + ": windows of more than 256 elements");
    }
}

const Span& window_at(const PoolGeometry& g, int axis, std::int64_t position) {
    return g.windows[axis][static_cast<std::size_t>(position)];
}

}  // namespace

ChannelsLastMaxPoolIndices::ChannelsLastMaxPoolIndices(Dims x, Dims y, const PoolWindow& window, int threads)
    : Kernel("ChannelsLastMaxPoolIndices", threads), functions_(pool_gradient_functions()) {
    inputs_ = {{"x", x}};
    outputs_ = {{"y", y, ElementType::f32, true}, {"taps", y, ElementType::u8, true}};
    geometry_ = pool_geometry(*this, x, y, window);
    check_taps(*this, geometry_);
    batch_ = x[0];
    channels_ = x[1];
    inputs_[0].shape = channels_behind(x);
    outputs_[0].shape = outputs_[1].shape = channels_behind(y);
}

void ChannelsLastMaxPoolIndices::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    const PoolGeometry& g = geometry_;
    const auto* x = static_cast<const float*>(inputs[0]);
    auto* y = static_cast<float*>(outputs[0]);
    auto* taps = static_cast<std::uint8_t*>(outputs[1]);
    const auto heights = static_cast<std::int64_t>(g.windows[1].size());
    const auto rows = static_cast<std::int64_t>(g.windows[0].size()) * heights;
    const double cost = 0.06 * static_cast<double>(g.row() * channels_ * g.most_inside());
    parallel_for(threads(), batch_ * rows, cost, [&](std::int64_t begin, std::int64_t end) {
        std::int64_t offsets[kMostTaps];
        std::int32_t numbers[kMostTaps];
        for (std::int64_t at = begin; at < end; ++at) {
            const float* image = x + at / rows * g.input_size() * channels_;
            const Span& deep = window_at(g, 0, at % rows / heights);
            const Span& high = window_at(g, 1, at % heights);
            for (std::int64_t w = 0; w < g.row(); ++w) {
                const Span& wide = window_at(g, 2, w);
                std::int64_t count = 0;
                for (std::int64_t i = deep.first; i < deep.last; ++i) {
                    const std::int64_t plane = (deep.start + i * g.dilation[0]) * g.input[1];
                    for (std::int64_t j = high.first; j < high.last; ++j) {
                        const std::int64_t line = (plane + high.start + j * g.dilation[1]) * g.input[2];
                        for (std::int64_t k = wide.first; k < wide.last; ++k) {
                            offsets[count] = (line + wide.start + k * g.dilation[2]) * channels_;
                            numbers[count++] = static_cast<std::int32_t>((i * g.kernel[1] + j) * g.kernel[2] + k);
                        }
                    }
                }
                const std::int64_t to = (at * g.row() + w) * channels_;
                functions_.maximum(image, offsets, numbers, count, channels_, y == nullptr ? nullptr : y + to,
                                   taps == nullptr ? nullptr : taps + to);
            }
        }
    });
}

ChannelsLastPoolGrad::ChannelsLastPoolGrad(const char* name, const Dims& dy, const Dims& dx, const PoolWindow& window,
                                           int threads)
    : Kernel(name, threads), functions_(pool_gradient_functions()) {
    inputs_ = {{"dy", dy}};
    outputs_ = {{"dx", dx}};
    geometry_ = pool_geometry(*this, dx, dy, window);
    batch_ = dx[0];
    channels_ = dx[1];
    inputs_[0].shape = channels_behind(dy);
    outputs_[0].shape = channels_behind(dx);
    for (int axis = 0; axis < 3; ++axis) {
        holders_[axis].resize(static_cast<std::size_t>(geometry_.input[axis]));
        for (std::size_t w = 0; w < geometry_.windows[axis].size(); ++w) {
            const Span& span = geometry_.windows[axis][w];
            for (std::int64_t k = span.first; k < span.last; ++k) {
                const std::int64_t position = span.start + k * geometry_.dilation[axis];
                holders_[axis][static_cast<std::size_t>(position)].push_back(
                    {static_cast<std::int64_t>(w), static_cast<std::int32_t>(k)});
            }
        }
        std::size_t most = 1;
        for (const auto& holders : holders_[axis]) {
            most = std::max(most, holders.size());
        }
        most_ *= most;
        most_rows_ *= axis < 2 ? most : 1;
    }
}

std::size_t ChannelsLastPoolGrad::scratch_bytes() const {
    const std::int64_t lines = batch_ * geometry_.input[0] * geometry_.input[1];
    return own_bytes() * static_cast<std::size_t>(std::clamp<std::int64_t>(lines, 1, std::max(1, threads())));
}

template <typename Factor, typename Body>
void ChannelsLastPoolGrad::for_each_position(std::byte* scratch, Factor&& factor, Body&& body) const {
    const PoolGeometry& g = geometry_;
    const auto heights = static_cast<std::int64_t>(g.windows[1].size());
    const std::int64_t lines = g.input[0] * g.input[1];
    const double cost = 0.06 * static_cast<double>(g.input[2] * channels_) * static_cast<double>(most_);
    parallel_for(threads(), batch_ * lines, cost, [&](std::int64_t begin, std::int64_t end) {
        std::byte* const own = scratch + own_bytes() * static_cast<std::size_t>(thread_number());
        auto* const sources = reinterpret_cast<PoolSource*>(own);
        auto* const rows = reinterpret_cast<Row*>(own + sources_bytes());
        for (std::int64_t at = begin; at < end; ++at) {
            std::size_t row_count = 0;
            for (const Holder& d : holders_[0][static_cast<std::size_t>(at % lines / g.input[1])]) {
                for (const Holder& h : holders_[1][static_cast<std::size_t>(at % g.input[1])]) {
                    const std::int64_t from = at / lines * g.output_size() + (d.window * heights + h.window) * g.row();
                    const std::int64_t tap = (d.element * g.kernel[1] + h.element) * g.kernel[2];
                    rows[row_count++] = {from, static_cast<std::int32_t>(tap), d.window, h.window};
                }
            }
            for (std::int64_t w = 0; w < g.input[2]; ++w) {
                std::size_t count = 0;
                for (const Row* row = rows; row != rows + row_count; ++row) {
                    for (const Holder& v : holders_[2][static_cast<std::size_t>(w)]) {
                        sources[count++] = {(row->from + v.window) * channels_, row->tap + v.element,
                                            factor(row->depth, row->height, v.window)};
                    }
                }
                body(sources, static_cast<std::int64_t>(count), (at * g.input[2] + w) * channels_);
            }
        }
    });
}

ChannelsLastMaxPoolGrad::ChannelsLastMaxPoolGrad(Dims dy, Dims dx, const PoolWindow& window, int threads)
    : ChannelsLastPoolGrad("ChannelsLastMaxPoolGrad", dy, dx, window, threads) {
    inputs_.push_back({"taps", inputs_[0].shape, ElementType::u8});
    check_taps(*this, geometry_);
}

void ChannelsLastMaxPoolGrad::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const auto* dy = static_cast<const float*>(inputs[0]);
    const auto* taps = static_cast<const std::uint8_t*>(inputs[1]);
    auto* dx = static_cast<float*>(outputs[0]);
    for_each_position(
        scratch, [](std::int64_t, std::int64_t, std::int64_t) { return 1.0F; },
        [&](const PoolSource* sources, std::int64_t count, std::int64_t to) {
            functions_.gather_chosen(dy, taps, sources, count, channels_, dx + to);
        });
}

ChannelsLastAveragePoolGrad::ChannelsLastAveragePoolGrad(Dims dy, Dims dx, const PoolWindow& window, bool include_pad,
                                                         int threads)
    : ChannelsLastPoolGrad("ChannelsLastAveragePoolGrad", dy, dx, window, threads), include_pad_(include_pad) {}

void ChannelsLastAveragePoolGrad::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const auto* dy = static_cast<const float*>(inputs[0]);
    auto* dx = static_cast<float*>(outputs[0]);
    const auto share = [&](std::int64_t depth, std::int64_t height, std::int64_t width) {
        return 1 / pool_divisor(include_pad_, window_at(geometry_, 0, depth), window_at(geometry_, 1, height),
                                window_at(geometry_, 2, width));
    };
    for_each_position(scratch, share, [&](const PoolSource* sources, std::int64_t count, std::int64_t to) {
        functions_.gather_shares(dy, sources, count, channels_, dx + to);
    });
}

static const RecipeConstructor<ChannelsLastMaxPoolIndices, Dims, Dims, const PoolWindow&, int>
    channels_last_max_pool_indices_recipe("ChannelsLastMaxPoolIndices");
static const RecipeConstructor<ChannelsLastMaxPoolGrad, Dims, Dims, const PoolWindow&, int>
    channels_last_max_pool_grad_recipe("ChannelsLastMaxPoolGrad");
static const RecipeConstructor<ChannelsLastAveragePoolGrad, Dims, Dims, const PoolWindow&, bool, int>
    channels_last_average_pool_grad_recipe("ChannelsLastAveragePoolGrad");

GRAPHKIT_BINDINGS(pool_channels_last_grad, "pool") {
    nb::class_<ChannelsLastMaxPoolIndices, Kernel>(m, "ChannelsLastMaxPoolIndices")
        .def("__init__", channels_last_max_pool_indices_recipe.init(), "x"_a, "y"_a, "window"_a, "threads"_a = 0);
    nb::class_<ChannelsLastMaxPoolGrad, Kernel>(m, "ChannelsLastMaxPoolGrad")
        .def("__init__", channels_last_max_pool_grad_recipe.init(), "dy"_a, "dx"_a, "window"_a, "threads"_a = 0);
    nb::class_<ChannelsLastAveragePoolGrad, Kernel>(m, "ChannelsLastAveragePoolGrad")
        .def("__init__", channels_last_average_pool_grad_recipe.init(), "dy"_a, "dx"_a, "window"_a,
             "include_pad"_a = false, "threads"_a = 0);
}

}  // namespace graphkit
#endif
