// Depthwise convolution of channels-last data, and its gradients: float32, one filter for each channel, one to three
// spatial dimensions. Results do not depend on the number of threads.
#include <utility>

#include "kernels/conv/depthwise_lanes.h"
#include "kernels/conv/depthwise_table.h"

namespace graphkit {

// Depthwise convolution of runs of windows.
namespace {

// Elements of a line in windows that are read line by line.
constexpr int kLineTaps = 3;

// Prefetches what the next run reads beyond this one, for `count` windows from number `first` on.
inline void fetch_ahead(const DepthwiseRun& run, const float* in, std::int64_t first, std::int64_t count) {
    constexpr std::int64_t kCacheLine = 64 / sizeof(float);
    for (std::int64_t row = 0; row < run.ahead_count; ++row) {
        const float* from = in + run.ahead[row] + first * run.step;
        for (std::int64_t at = 0; at < (count - 1) * run.step + run.channels; at += kCacheLine) {
            __builtin_prefetch(from + at, 0, 2);
        }
    }
}

// The loops are unrolled: otherwise the sums would be moved from registers to memory.
template <int Width, int Vectors, typename Access>
[[gnu::always_inline]] inline void store_sums(const Lane (&sums)[Width][Vectors], const DepthwiseRun& run,
                                              const DepthwiseFinish& given, std::int64_t channel, float* out,
                                              Access access) {
    const DepthwiseFinish finish(given);  // stored results cannot change it
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
        const Lane bias = finish.bias == nullptr ? Lane{} : access.read(finish.bias + channel + v * kLane);
#pragma GCC unroll 8
        for (int i = 0; i < Width; ++i) {
            access.write(out + i * run.out_step + v * kLane, finished(sums[i][v] + bias, finish));
        }
    }
}

// Computes `Width` adjacent results for `Vectors` vectors of channels. Each element of the filter is loaded once for
// all results, and there are enough sums to keep the FMA units busy.
template <int Width, int Vectors, typename Access>
inline void correlate_block(const DepthwiseRun& run, const float* in, const float* w, const DepthwiseFinish& finish,
                            std::int64_t channel, float* out, Access access) {
    Lane sums[Width][Vectors] = {};
    for (std::int64_t t = 0; t < run.taps; ++t) {
        const float* filter = w + run.numbers[t] * run.channels;
        const float* from = in + run.offsets[t];
        Lane factors[Vectors];
        for (int v = 0; v < Vectors; ++v) {
            factors[v] = access.read(filter + v * kLane);
        }
        for (int i = 0; i < Width; ++i) {
            for (int v = 0; v < Vectors; ++v) {
                sums[i][v] += access.read(from + i * run.step + v * kLane) * factors[v];
            }
        }
    }
    store_sums(sums, run, finish, channel, out, access);
}

// Like correlate_block, for windows in lines of 3 elements; consecutive windows are `Step` elements apart.
template <int Step, int Width, int Vectors, typename Access>
inline void correlate_lines(const DepthwiseRun& run, const float* in, const float* w, const DepthwiseFinish& finish,
                            std::int64_t channel, float* out, Access access) {
    Lane sums[Width][Vectors] = {};
    for (std::int64_t t = 0; t < run.taps; t += kLineTaps) {
        add_line<kLineTaps, Step>(in + run.offsets[t], w + run.numbers[t] * run.channels, run.channels, sums, access);
    }
    store_sums(sums, run, finish, channel, out, access);
}

// A method to compute `Width` adjacent results.
struct ByTaps {
    template <int Width>
    static constexpr int kVectors = Width > 3 ? 2 : 4;
    template <int Width, int Vectors, typename... Given>
    static void block(Given&&... given) {
        correlate_block<Width, Vectors>(given...);
    }
};

template <int Step>
struct ByLines {
#if defined(__AVX512F__)
    template <int Width>
    static constexpr int kVectors = 2;
#else
    template <int Width>
    static constexpr int kVectors = 1;
#endif
    template <int Width, int Vectors, typename... Given>
    static void block(Given&&... given) {
        correlate_lines<Step, Width, Vectors>(given...);
    }
};

template <typename Method, int Width>
void correlate_windows(const DepthwiseRun& run, const float* in, const float* w, const DepthwiseFinish& finish,
                       float* out) {
    constexpr int kVectors = Method::template kVectors<Width>;
    std::int64_t c = 0;
    for (; c + kVectors * kLane <= run.channels; c += kVectors * kLane) {
        Method::template block<Width, kVectors>(run, in + c, w + c, finish, c, out + c, Whole{});
    }
    over_channels(run.channels - c, [&](std::int64_t more, auto access) {
        const std::int64_t at = c + more;
        Method::template block<Width, 1>(run, in + at, w + at, finish, at, out + at, access);
    });
}

template <typename Method, int... Less>
inline void correlate_run(const DepthwiseRun& run, const float* in, const float* w, const DepthwiseFinish& finish,
                          float* out, std::integer_sequence<int, Less...>) {
    using Windows = void (*)(const DepthwiseRun&, const float*, const float*, const DepthwiseFinish&, float*);
    constexpr Windows kWindows[] = {correlate_windows<Method, Less + 1>...};
    constexpr std::int64_t kWide = sizeof...(Less);
    const std::int64_t blocks = (run.count + kWide - 1) / kWide;
    std::int64_t i = 0;
    for (std::int64_t block = 0; block < blocks; ++block) {
        const std::int64_t width = (run.count - i + blocks - block - 1) / (blocks - block);
        fetch_ahead(run, in, i, width);
        kWindows[width - 1](run, in + i * run.step, w, finish, out + i * run.out_step);
        i += width;
    }
}

// Whether the taps form lines of 3 adjacent elements.
bool has_lines(const DepthwiseRun& run) {
    for (std::int64_t t = 0; t < run.taps; ++t) {
        const std::int64_t next = t % kLineTaps;
        if (run.offsets[t] != run.offsets[t - next] + next * run.channels ||
            run.numbers[t] != run.numbers[t - next] + next) {
            return false;
        }
    }
    return run.taps % kLineTaps == 0;
}

// All methods give the same bits.
void correlate(const DepthwiseRun& run, const float* in, const float* w, const DepthwiseFinish& finish, float* out) {
    constexpr auto kWidths = std::make_integer_sequence<int, 6>();
    const bool lines = has_lines(run);
    if (lines && run.step == run.channels) {
        correlate_run<ByLines<1>>(run, in, w, finish, out, kWidths);
    } else if (lines && run.step == 2 * run.channels) {
        correlate_run<ByLines<2>>(run, in, w, finish, out, kWidths);
    } else {
        correlate_run<ByTaps>(run, in, w, finish, out, kWidths);
    }
}

// Adds, to `Width` taps of w from number `first` on, their products summed over `count` windows.
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

#ifdef GRAPHKIT_ONCE
#include <algorithm>

#include "kernels/conv/depthwise.h"
#include "kernels/conv/depthwise_copied.h"
#include "kernels/conv/depthwise_plan.h"
#include "kernels/conv/following.h"
#include "kernels/pointwise/epilogue.h"
#include "kernels/pool/pool.h"
#include "runtime/bindings.h"
#include "runtime/recipe.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// Base of the depthwise kernels here. Shapes are given as [N, C, ...], filters are [C, 1, kernel].
class Depthwise : public Kernel {
  protected:
    Depthwise(const char* name, int threads) : Kernel(name, threads), functions_(depthwise_functions()) {}
    // Sets the members that depend on the shapes. Constructors call it once.
    PoolGeometry prepare(const Dims& x, const Dims& y, const PoolWindow& window, bool transposed);
    // Transposes filters [C, taps] to [taps, C].
    void arrange(const float* w, float* filters) const;
    void correlate(const float* in, const float* filters, const DepthwiseFinish& finish, float* out) const;
    std::size_t filter_bytes() const;

    Dims x_, y_, w_;  // shapes in memory
    DepthwisePlan plan_;
    std::int64_t batch_ = 0;
    std::int64_t channels_ = 0;
    std::int64_t taps_ = 0;
    const DepthwiseFunctions& functions_;
};

// y = epilogue(conv(x, w) + bias). Constant weights may come packed.
class DepthwiseConvolution final : public Depthwise {
  public:
    // Throws Unsupported for an epilogue with a residual.
    DepthwiseConvolution(Dims x, Dims y, const PoolWindow& window, const Epilogue& epilogue, bool pack_weights,
                         int threads);
    std::size_t scratch_bytes() const override {
        return (packed_ ? 0 : aligned(filter_bytes())) + std::max(copied_.scratch_bytes(), following_.scratch_bytes());
    }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<int> packed_inputs() const override { return packed_ ? std::vector{1} : std::vector<int>{}; }
    std::size_t packed_bytes(int input) const override;
    std::string packed_layout(int input) const override;
    void pack(int input, const void* plain, void* packed) const override;

  private:
    bool packed_;
    CopiedDepthwise copied_;
    Following following_;
};

// dx from dy and w.
class DepthwiseBackwardData final : public Depthwise {
  public:
    DepthwiseBackwardData(Dims dy, Dims dx, const PoolWindow& window, int threads);
    std::size_t scratch_bytes() const override { return filter_bytes(); }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
};

// dw from x and dy. The lines are divided into a number of parts that does not depend on the number of threads; their
// sums are added in order.
class DepthwiseBackwardWeights final : public Depthwise {
  public:
    DepthwiseBackwardWeights(Dims x, Dims dy, const PoolWindow& window, int threads);
    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    std::int64_t parts_ = 1;
};

constexpr double kProductNanoseconds = 0.05;
// Least products of a part in the gradient of weights, and the largest number of parts.
constexpr std::int64_t kPartProducts = 1 << 18;
constexpr std::int64_t kMostParts = 32;

Dims channels_behind(const Dims& dims) {
    Dims moved(dims);
    moved.erase(moved.begin() + 1);
    moved.push_back(dims[1]);
    return moved;
}

}  // namespace

PoolGeometry Depthwise::prepare(const Dims& x, const Dims& y, const PoolWindow& window, bool transposed) {
    PoolGeometry geometry = pool_geometry(*this, x, y, window);
    batch_ = x[0];
    channels_ = x[1];
    x_ = channels_behind(x);
    y_ = channels_behind(y);
    w_ = {channels_, 1};
    w_.insert(w_.end(), window.kernel.begin(), window.kernel.end());
    require_shape(w_);
    taps_ = geometry.kernel[0] * geometry.kernel[1] * geometry.kernel[2];
    plan_ = DepthwisePlan(geometry, transposed);
    return geometry;
}

std::size_t Depthwise::filter_bytes() const {
    return static_cast<std::size_t>(taps_ * channels_) * sizeof(float);
}

void Depthwise::arrange(const float* w, float* filters) const {
    for (std::int64_t c = 0; c < channels_; ++c) {
        for (std::int64_t t = 0; t < taps_; ++t) {
            filters[t * channels_ + c] = w[c * taps_ + t];
        }
    }
}

void Depthwise::correlate(const float* in, const float* filters, const DepthwiseFinish& finish, float* out) const {
    const std::int64_t lines = plan_.lines();
    const double cost = kProductNanoseconds * static_cast<double>(plan_.width() * channels_ * taps_);
    parallel_for(threads(), batch_ * lines, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t at = begin; at < end; ++at) {
            const float* image = in + at / lines * plan_.input_size() * channels_;
            float* line = out + at * plan_.width() * channels_;
            plan_.for_each_run(at % lines, channels_, [&](const DepthwiseRun& run, std::int64_t first) {
                functions_.correlate(run, image, filters, finish, line + first);
            });
        }
    });
}

DepthwiseConvolution::DepthwiseConvolution(Dims x, Dims y, const PoolWindow& window, const Epilogue& epilogue,
                                           bool pack_weights, int threads)
    : Depthwise("DepthwiseConvolution", threads), packed_(pack_weights) {
    const PoolGeometry geometry = prepare(x, y, window, false);
    inputs_ = {{"x", x_}, {"w", w_}};
    outputs_ = {{"y", y_}};
    if (epilogue.alpha != 1 || epilogue.residual != 0) {
        throw Unsupported(describe() + ": more follows than a bias and an activation");
    }
    if (epilogue.bias) {
        inputs_.push_back({"bias", {channels_}});
    }
    copied_ = CopiedDepthwise(geometry, x[0], channels_, this->threads());
    following_ = Following(epilogue, count(y) / std::max<std::int64_t>(channels_, 1), channels_, this->threads());
}

void DepthwiseConvolution::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const auto* filters = static_cast<const float*>(inputs[1]);
    if (!packed_) {
        auto* arranged = reinterpret_cast<float*>(scratch);
        arrange(filters, arranged);
        filters = arranged;
        scratch += aligned(filter_bytes());
    }
    const void* bias = inputs_.size() > 2 ? inputs[2] : nullptr;
    const TiledEpilogue here = following_.on_the_way(bias, nullptr);
    const DepthwiseFinish finish{here.bias, here.slope, here.low, here.high};
    const auto* x = static_cast<const float*>(inputs[0]);
    auto* y = static_cast<float*>(outputs[0]);
    if (copied_.suits(filters)) {
        copied_.run(x, filters, finish, y, scratch);
    } else {
        correlate(x, filters, finish, y);
    }
    following_.pass(outputs[0], nullptr, outputs[0], scratch);
}

std::size_t DepthwiseConvolution::packed_bytes(int input) const {
    require_packed(input);
    return filter_bytes();
}

std::string DepthwiseConvolution::packed_layout(int input) const {
    require_packed(input);
    return "depthwise channels last";
}

void DepthwiseConvolution::pack(int input, const void* plain, void* packed) const {
    require_packed(input);
    arrange(static_cast<const float*>(plain), static_cast<float*>(packed));
}

DepthwiseBackwardData::DepthwiseBackwardData(Dims dy, Dims dx, const PoolWindow& window, int threads)
    : Depthwise("DepthwiseBackwardData", threads) {
    prepare(dx, dy, window, true);
    inputs_ = {{"dy", y_}, {"w", w_}};
    outputs_ = {{"dx", x_}};
}

void DepthwiseBackwardData::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    auto* filters = reinterpret_cast<float*>(scratch);
    arrange(static_cast<const float*>(inputs[1]), filters);
    correlate(static_cast<const float*>(inputs[0]), filters, {}, static_cast<float*>(outputs[0]));
}

DepthwiseBackwardWeights::DepthwiseBackwardWeights(Dims x, Dims dy, const PoolWindow& window, int threads)
    : Depthwise("DepthwiseBackwardWeights", threads) {
    prepare(x, dy, window, false);
    inputs_ = {{"x", x_}, {"dy", y_}};
    outputs_ = {{"dw", w_}};
    const std::int64_t lines = batch_ * plan_.lines();
    const std::int64_t most = std::clamp<std::int64_t>(lines, 1, kMostParts);
    parts_ = std::clamp<std::int64_t>(lines * plan_.width() * channels_ * taps_ / kPartProducts, 1, most);
}

std::size_t DepthwiseBackwardWeights::scratch_bytes() const {
    return static_cast<std::size_t>(parts_) * filter_bytes();
}

void DepthwiseBackwardWeights::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const auto* x = static_cast<const float*>(inputs[0]);
    const auto* dy = static_cast<const float*>(inputs[1]);
    auto* dw = static_cast<float*>(outputs[0]);
    auto* totals = reinterpret_cast<float*>(scratch);
    const std::int64_t size = taps_ * channels_;
    const std::int64_t lines = plan_.lines();
    const double products = static_cast<double>(batch_ * lines * plan_.width() * size);
    parallel_for(threads(), parts_, kProductNanoseconds * products / static_cast<double>(parts_),
                 [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t part = begin; part < end; ++part) {
                         float* total = totals + part * size;
                         std::fill_n(total, size, 0.0F);
                         for (std::int64_t at = batch_ * lines * part / parts_;
                              at < batch_ * lines * (part + 1) / parts_; ++at) {
                             const float* image = x + at / lines * plan_.input_size() * channels_;
                             const float* line = dy + at * plan_.width() * channels_;
                             plan_.for_each_run(at % lines, channels_,
                                                [&](const DepthwiseRun& run, std::int64_t first) {
                                                    functions_.add_products(run, image, line + first, total);
                                                });
                         }
                     }
                 });
    for (std::int64_t c = 0; c < channels_; ++c) {
        for (std::int64_t t = 0; t < taps_; ++t) {
            double sum = 0;
            for (std::int64_t part = 0; part < parts_; ++part) {
                sum += static_cast<double>(totals[part * size + t * channels_ + c]);
            }
            dw[c * taps_ + t] = static_cast<float>(sum);
        }
    }
}

std::unique_ptr<Kernel> depthwise_convolution(const Dims& x, const Dims& y, const PoolWindow& window,
                                              const Epilogue& epilogue, bool pack_weights, int threads) {
    return std::make_unique<DepthwiseConvolution>(x, y, window, epilogue, pack_weights, threads);
}

static const RecipeKind depthwise_convolution_recipe(
    "DepthwiseConvolution", +[](DepthwiseConvolution* self, const Dims& x, const Dims& y, const PoolWindow& window,
                                int threads, bool bias, Epilogue last, bool pack_weights) {
        last.bias = bias;
        new (self) DepthwiseConvolution(x, y, window, last, pack_weights, threads);
    });

static const RecipeConstructor<DepthwiseBackwardData, Dims, Dims, const PoolWindow&, int>
    depthwise_backward_data_recipe("DepthwiseBackwardData");
static const RecipeConstructor<DepthwiseBackwardWeights, Dims, Dims, const PoolWindow&, int>
    depthwise_backward_weights_recipe("DepthwiseBackwardWeights");

GRAPHKIT_BINDINGS(depthwise_channels_last, "pool", "epilogue") {
    nb::class_<DepthwiseConvolution, Kernel>(m, "DepthwiseConvolution")
        .def("__init__", depthwise_convolution_recipe.init(), "x"_a, "y"_a, "window"_a, "threads"_a = 0, nb::kw_only(),
             "bias"_a = false, "epilogue"_a = Epilogue{}, "pack_weights"_a = false)
        .def_static("slides", &CopiedDepthwise::suits_window, "y"_a, "window"_a,
                    "Whether this is faster than the library, because it computes large windows from copies.");
    nb::class_<DepthwiseBackwardData, Kernel>(m, "DepthwiseBackwardData")
        .def("__init__", depthwise_backward_data_recipe.init(), "dy"_a, "dx"_a, "window"_a, "threads"_a = 0);
    nb::class_<DepthwiseBackwardWeights, Kernel>(m, "DepthwiseBackwardWeights")
        .def("__init__", depthwise_backward_weights_recipe.init(), "x"_a, "dy"_a, "window"_a, "threads"_a = 0);
}

}  // namespace graphkit
#endif
