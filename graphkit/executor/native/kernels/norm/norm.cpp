#include "kernels/norm/norm.h"

#include <cmath>

#include "kernels/norm/channel_statistics.h"
#include "runtime/bindings.h"
#include "runtime/operator_kernels.h"

namespace graphkit {
namespace {

constexpr double kElementNanoseconds = 0.2;
// With fewer positions, a channel is not worth a loop of its own.
constexpr std::int64_t kShortPlane = 16;
// Positions of a tile of LocalResponseNorm. Its channels are read several times, from the cache.
constexpr std::int64_t kResponseTile = 512;

// Gathers a row: to[i] = from[offsets[i]].
template <typename T>
void expand(const T* from, const std::vector<std::int64_t>& offsets, Wide<T>* to) {
    for (std::size_t i = 0; i < offsets.size(); ++i) {
        Wide<T> buffer;
        to[i] = *widened(from + offsets[i], &buffer, 1);
    }
}

}  // namespace

// --- rows -------------------------------------------------------------------------------------------

RowVector::RowVector(const Kernel& kernel, const Dims& x, std::size_t axis, const Dims& shape) {
    const auto fail = [&] { throw NativeError(kernel.describe() + ": " + to_string(shape) + " does not broadcast"); };
    if (shape.size() > x.size()) {
        fail();
    }
    const Dims strides = row_major(shape);
    const std::size_t missing = x.size() - shape.size();
    for (std::size_t i = 0; i < x.size(); ++i) {
        const std::int64_t size = i < missing ? 1 : shape[i - missing];
        if (size != 1 && size != x[i]) {
            fail();
        }
        if (i < axis) {
            if (size != 1) {
                throw Unsupported(kernel.describe() + ": a scale that differs between rows");
            }
            continue;
        }
        whole_ = whole_ && size == x[i];
        sizes_.push_back(x[i]);
        strides_.push_back(size == 1 ? 0 : strides[i - missing]);
    }
}

std::vector<std::int64_t> RowVector::offsets() const {
    std::vector<std::int64_t> offsets(static_cast<std::size_t>(count(sizes_)));
    for (std::size_t i = 0; i < offsets.size(); ++i) {
        auto rest = static_cast<std::int64_t>(i);
        for (std::size_t axis = sizes_.size(); axis-- > 0;) {
            offsets[i] += rest % sizes_[axis] * strides_[axis];
            rest /= sizes_[axis];
        }
    }
    return offsets;
}

LayerNorm::LayerNorm(const Dims& x, std::int64_t axis, const Dims& scale, const std::optional<Dims>& bias,
                     const std::string& type, double epsilon, bool about_mean, const std::string& stash, bool y,
                     int threads)
    : Kernel(about_mean ? "LayerNormalization" : "RMSNormalization", threads),
      type_(float_type(type)),
      stash_(float_type(stash)),
      about_mean_(about_mean),
      epsilon_(epsilon),
      discard_(!y) {
    const auto rank = static_cast<std::int64_t>(x.size());
    if (axis < -rank || axis >= rank) {
        throw NativeError(name() + ": axis " + std::to_string(axis) + " is out of range for " + to_string(x));
    }
    if (is_half(stash_)) {
        throw Unsupported(name() + ": statistics in " + stash);
    }
    const auto first = static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
    Dims statistics(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
        (i < first ? rows_ : size_) *= x[i];
        statistics[i] = i < first ? x[i] : 1;
    }
    inputs_ = {{"x", x, type_}, {"scale", scale, type_}};
    outputs_ = {{"y", x, type_, discard_}};
    if (about_mean_) {
        inputs_.push_back({"b", bias.value_or(Dims{}), type_, true});
        outputs_.push_back({"mean", statistics, stash_, true});
        outputs_.push_back({"inv_std_dev", statistics, stash_, true});
    }
    const RowVector scales(*this, x, first, scale);
    expand_scale_ = is_half(type_) || !scales.whole();
    if (!scales.whole()) {
        scale_offsets_ = scales.offsets();
    }
    if (bias) {
        const RowVector biases(*this, x, first, *bias);
        expand_bias_ = is_half(type_) || !biases.whole();
        if (!biases.whole()) {
            bias_offsets_ = biases.offsets();
        }
    }
}

std::size_t LayerNorm::scratch_bytes() const {
    const std::size_t row = aligned(static_cast<std::size_t>(size_) * (type_ == ElementType::f64 ? 8 : 4));
    const int converted = is_half(type_) || discard_ ? std::max(threads(), 1) : 0;
    return row * static_cast<std::size_t>(int{expand_scale_} + int{expand_bias_} + converted);
}

template <typename T>
void LayerNorm::run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    using W = Wide<T>;
    const std::size_t row_bytes = aligned(static_cast<std::size_t>(size_) * sizeof(W));
    const auto vector = [&](const void* operand, bool expanded, const std::vector<std::int64_t>& offsets) {
        const auto* from = static_cast<const T*>(operand);
        if (from == nullptr || !expanded) {
            if constexpr (kIsHalf<T>) {
                return static_cast<const W*>(nullptr);
            } else {
                return from;
            }
        }
        auto* to = reinterpret_cast<W*>(scratch);
        scratch += row_bytes;
        if (offsets.empty()) {
            load_floats(from, type_, to, size_);
        } else {
            expand(from, offsets, to);
        }
        return static_cast<const W*>(to);
    };
    const auto* x = static_cast<const T*>(inputs[0]);
    auto* y = static_cast<T*>(outputs[0]);
    const W* scale = vector(inputs[1], expand_scale_, scale_offsets_);
    const W* bias = about_mean_ ? vector(inputs[2], expand_bias_, bias_offsets_) : nullptr;
    void* means = about_mean_ ? outputs[1] : nullptr;
    void* inverses = about_mean_ ? outputs[2] : nullptr;
    const auto epsilon = static_cast<W>(epsilon_);
    const RowFunctions<W>& functions = row_table().rows<T>();
    const double cost = 10 + kElementNanoseconds * static_cast<double>(size_);
    parallel_for(threads(), rows_, cost, [&](std::int64_t begin, std::int64_t end) {
        auto* buffer = reinterpret_cast<W*>(scratch + static_cast<std::size_t>(thread_number()) * row_bytes);
        const auto store_statistic = [&](W value, void* to, std::int64_t row) {
            if (stash_ == ElementType::f64) {
                static_cast<double*>(to)[row] = static_cast<double>(value);
            } else {
                static_cast<float*>(to)[row] = static_cast<float>(value);
            }
        };
        for (std::int64_t row = begin; row < end; ++row) {
            const W* from = widened(x + row * size_, buffer, size_);
            W* to = discard_ ? buffer : target(y + row * size_, buffer);
            W mean = 0;
            W inverse = 0;
            if (about_mean_) {
                functions.layer_norm(from, scale, bias, epsilon, to, size_, &mean, &inverse);
            } else {
                functions.rms_norm(from, scale, epsilon, to, size_, &inverse);
            }
            if (!discard_) {
                narrowed(to, y + row * size_, size_);
            }
            if (means != nullptr) {
                store_statistic(mean, means, row);
            }
            if (inverses != nullptr) {
                store_statistic(inverse, inverses, row);
            }
        }
    });
}

void LayerNorm::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    with_float_type(type_, [&]<typename T>() { run_as<T>(inputs, outputs, scratch); });
}

// --- channels ---------------------------------------------------------------------------------------

namespace {

// y = (x - centre) * factor + bias.
template <typename T>
void affine(const T* x, Wide<T> centre, Wide<T> factor, Wide<T> bias, T* y, std::int64_t size) {
    Block<T> block;
    for_each_block<T>(size, [&](std::int64_t at, std::int64_t part) {
        Wide<T>* to = target(y + at, block);
        row_table().rows<T>().affine(widened(x + at, block, part), centre, factor, bias, to, part);
        narrowed(to, y + at, part);
    });
}

}  // namespace

GroupNorm::GroupNorm(const Dims& x, std::int64_t groups, const std::string& type, double epsilon, int threads)
    : Kernel("GroupNormalization", threads), type_(float_type(type)), epsilon_(epsilon) {
    if (x.size() < 2 || groups < 1 || x[1] % groups != 0) {
        throw NativeError(name() + ": the channels of " + to_string(x) + " cannot be divided into " +
                          std::to_string(groups) + " groups");
    }
    inputs_ = {{"x", x, type_}, {"scale", {x[1]}, type_}, {"bias", {x[1]}, type_}};
    outputs_ = {{"y", x, type_}};
    rows_ = x[0] * groups;
    channels_ = x[1];
    per_group_ = x[1] / groups;
    inner_ = count(Dims(x.begin() + 2, x.end()));
}

std::size_t GroupNorm::scratch_bytes() const {
    return 2 * static_cast<std::size_t>(channels_) * sizeof(double);
}

template <typename T>
void GroupNorm::run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    using W = Wide<T>;
    const auto* x = static_cast<const T*>(inputs[0]);
    auto* y = static_cast<T*>(outputs[0]);
    auto* scale = reinterpret_cast<W*>(scratch);
    W* bias = scale + channels_;
    load_floats(inputs[1], type_, scale, channels_);
    load_floats(inputs[2], type_, bias, channels_);
    const std::int64_t size = per_group_ * inner_;
    if (size == 0) {
        return;
    }
    const double cost = 20 + kElementNanoseconds * static_cast<double>(size);
    parallel_for(threads(), rows_, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            const T* from = x + row * size;
            const auto elements = static_cast<W>(size);
            W mean;
            reduction_table().reduction<T>(Reduction::sum).rows(from, 1, 0, size, nullptr, &mean);
            mean /= elements;
            W squares;
            reduction_table().reduction<T>(Reduction::sum_squares_about).rows(from, 1, 0, size, &mean, &squares);
            const W inverse = W{1} / std::sqrt(squares / elements + static_cast<W>(epsilon_));
            const std::int64_t first = row * per_group_ % channels_;
            for (std::int64_t i = 0; i < per_group_; ++i) {
                affine(from + i * inner_, mean, inverse * scale[first + i], bias[first + i],
                       y + row * size + i * inner_, inner_);
            }
        }
    });
}

void GroupNorm::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    with_float_type(type_, [&]<typename T>() { run_as<T>(inputs, outputs, scratch); });
}

ChannelGeometry::ChannelGeometry(const Dims& x) {
    images = x.empty() ? 1 : x[0];
    channels = x.size() > 1 ? x[1] : 1;
    inner = x.size() > 2 ? graphkit::count(Dims(x.begin() + 2, x.end())) : 1;
}

BatchNorm::BatchNorm(const Dims& x, const std::string& type, const std::string& scale_type,
                     const std::string& mean_type, double epsilon, bool training, double momentum, int threads)
    : Kernel("BatchNormalization", threads),
      type_(float_type(type)),
      scale_type_(float_type(scale_type)),
      mean_type_(float_type(mean_type)),
      epsilon_(epsilon),
      momentum_(momentum),
      training_(training),
      geometry_(x) {
    if (x.empty()) {
        throw NativeError(name() + ": x has no batch axis");
    }
    const Dims vector{geometry_.channels};
    inputs_ = {{"x", x, type_},
               {"scale", vector, scale_type_},
               {"b", vector, scale_type_},
               {"input_mean", vector, mean_type_},
               {"input_var", vector, mean_type_}};
    outputs_ = {{"y", x, type_, training_}};
    if (training_) {
        outputs_.push_back({"running_mean", vector, mean_type_, true});
        outputs_.push_back({"running_var", vector, mean_type_, true});
    }
}

std::size_t BatchNorm::scratch_bytes() const {
    const std::int64_t expanded = geometry_.inner <= kShortPlane ? 3 * geometry_.inner : 0;
    return static_cast<std::size_t>((5 + expanded) * geometry_.channels) * sizeof(double);
}

template <typename T>
void BatchNorm::run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    using W = Wide<T>;
    const ChannelGeometry& g = geometry_;
    const auto* x = static_cast<const T*>(inputs[0]);
    auto* y = static_cast<T*>(outputs[0]);
    auto* mean = reinterpret_cast<W*>(scratch);
    W* factor = mean + g.channels;
    W* bias = factor + g.channels;
    W* var = bias + g.channels;
    W* given = var + g.channels;
    load_floats(inputs[2], scale_type_, bias, g.channels);
    if (training_) {
        for_each_channel_group(g, threads(), kElementNanoseconds, [&](std::int64_t first, std::int64_t size) {
            channel_statistics(g, x, first, size, epsilon_, mean + first, factor + first, var + first);
        });
        const auto keep = static_cast<W>(momentum_);
        for (const int which : {0, 1}) {
            const W* current = which == 0 ? mean : var;
            load_floats(inputs[3 + which], mean_type_, given, g.channels);
            for (std::int64_t c = 0; c < g.channels; ++c) {
                given[c] = given[c] * keep + current[c] * static_cast<W>(1 - momentum_);
            }
            if (outputs[1 + which] != nullptr) {
                store_floats(given, outputs[1 + which], mean_type_, g.channels);
            }
        }
        if (y == nullptr) {
            return;
        }
    } else {
        load_floats(inputs[3], mean_type_, mean, g.channels);
        load_floats(inputs[4], mean_type_, var, g.channels);
        for (std::int64_t c = 0; c < g.channels; ++c) {
            factor[c] = W{1} / std::sqrt(var[c] + static_cast<W>(epsilon_));
        }
    }
    load_floats(inputs[1], scale_type_, given, g.channels);
    for (std::int64_t c = 0; c < g.channels; ++c) {
        factor[c] *= given[c];
    }
    if (g.inner <= kShortPlane) {
        const std::int64_t row_size = g.channels * g.inner;
        if (g.inner > 1) {  // one per element of an image
            W* wide = given + g.channels;
            for (W** vector : {&mean, &factor, &bias}) {
                for (std::int64_t i = 0; i < row_size; ++i) {
                    wide[i] = (*vector)[i / g.inner];
                }
                *vector = wide;
                wide += row_size;
            }
        }
        const double cost = 5 + kElementNanoseconds * static_cast<double>(row_size);
        parallel_for(threads(), g.images, cost, [&](std::int64_t begin, std::int64_t end) {
            Block<T> block;
            for (std::int64_t image = begin; image < end; ++image) {
                for_each_block<T>(row_size, [&](std::int64_t at, std::int64_t size) {
                    const std::int64_t row = image * row_size + at;
                    W* to = target(y + row, block);
                    row_table().rows<T>().affine_each(widened(x + row, block, size), mean + at, factor + at, bias + at,
                                                      to, size);
                    narrowed(to, y + row, size);
                });
            }
        });
        return;
    }
    const double cost = 5 + kElementNanoseconds * static_cast<double>(g.inner);
    parallel_for(threads(), g.images * g.channels, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t plane = begin; plane < end; ++plane) {
            const std::int64_t c = plane % g.channels;
            affine(x + plane * g.inner, mean[c], factor[c], bias[c], y + plane * g.inner, g.inner);
        }
    });
}

void BatchNorm::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    with_float_type(type_, [&]<typename T>() { run_as<T>(inputs, outputs, scratch); });
}

// --- neighbouring channels --------------------------------------------------------------------------

LocalResponseNorm::LocalResponseNorm(const Dims& x, const std::string& type, std::int64_t size, double alpha,
                                     double beta, double bias, int threads)
    : Kernel("LRN", threads),
      type_(float_type(type)),
      size_(size),
      alpha_(alpha),
      beta_(beta),
      bias_(bias),
      geometry_(x) {
    if (x.size() < 2 || size < 1) {
        throw NativeError(name() + ": " + std::to_string(size) + " channels of " + to_string(x));
    }
    inputs_ = {{"x", x, type_}};
    outputs_ = {{"y", x, type_}};
    tile_ = std::min(kResponseTile, std::max<std::int64_t>(geometry_.inner, 1));
}

std::size_t LocalResponseNorm::scratch_bytes() const {
    if (!is_half(type_)) {
        return 0;
    }
    return static_cast<std::size_t>(std::max(threads(), 1)) *
           aligned(static_cast<std::size_t>((geometry_.channels + 1) * tile_) * sizeof(float));
}

template <typename T>
void LocalResponseNorm::run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    using W = Wide<T>;
    const ChannelGeometry& g = geometry_;
    const auto* x = static_cast<const T*>(inputs[0]);
    auto* y = static_cast<T*>(outputs[0]);
    const std::int64_t tiles = (g.inner + tile_ - 1) / tile_;
    const bool power = beta_ == 0.75;
    const auto factor = static_cast<W>(alpha_ / static_cast<double>(size_));
    const std::int64_t before = (size_ - 1) / 2;
    const double cost = (power ? 1 : 20) * static_cast<double>(g.channels * tile_);
    parallel_for(threads(), g.images * tiles, cost, [&](std::int64_t begin, std::int64_t end) {
        const std::size_t bytes = aligned(static_cast<std::size_t>((g.channels + 1) * tile_) * sizeof(W));
        auto* panel = reinterpret_cast<W*>(scratch + static_cast<std::size_t>(thread_number()) * bytes);
        for (std::int64_t item = begin; item < end; ++item) {
            const std::int64_t column = item % tiles * tile_;
            const std::int64_t width = std::min(tile_, g.inner - column);
            const T* from = x + g.offset(item / tiles, 0) + column;
            T* to = y + g.offset(item / tiles, 0) + column;
            const std::int64_t stride = kIsHalf<T> ? tile_ : g.inner;
            if constexpr (kIsHalf<T>) {
                for (std::int64_t c = 0; c < g.channels; ++c) {
                    widened(from + c * g.inner, panel + c * tile_, width);
                }
            }
            for (std::int64_t c = 0; c < g.channels; ++c) {
                const W* row = kIsHalf<T> ? panel + c * stride : reinterpret_cast<const W*>(from + c * g.inner);
                W* result = target(to + c * g.inner, panel + g.channels * tile_);
                const std::int64_t first = std::max<std::int64_t>(-before, -c);
                const std::int64_t last = std::min(size_ - before, g.channels - c);
                row_table().rows<T>().local_response(row, first, last, stride, static_cast<W>(bias_), factor, power,
                                                     result, width);
                if (!power) {
                    for (std::int64_t i = 0; i < width; ++i) {
                        result[i] = row[i] / std::pow(result[i], static_cast<W>(beta_));
                    }
                }
                narrowed(result, to + c * g.inner, width);
            }
        }
    });
}

void LocalResponseNorm::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    with_float_type(type_, [&]<typename T>() { run_as<T>(inputs, outputs, scratch); });
}

GRAPHKIT_KERNEL_READING("", LayerNormalization) {
    const TensorSpec &x = node.input(0).tensor, &mean = node.outputs.at(1);
    if (mean.type == ElementType::f64 && x.type != ElementType::f64) {
        return nullptr;
    }
    const OptionalDims bias = node.has_input(2) ? OptionalDims(node.input(2).tensor.shape) : std::nullopt;
    return std::make_unique<LayerNorm>(x.shape, node.integer("axis"), node.input(1).tensor.shape, bias, name_of(x.type),
                                       node.real("epsilon"), true, name_of(mean.type), node.is_used(0), node.threads);
}

GRAPHKIT_KERNEL_READING("", RMSNormalization) {
    const TensorSpec &x = node.input(0).tensor, &scale = node.input(1).tensor;
    if (x.type != scale.type) {
        return nullptr;
    }
    return std::make_unique<LayerNorm>(x.shape, node.integer("axis"), scale.shape, std::nullopt, name_of(x.type),
                                       node.real("epsilon"), false, "float32", true, node.threads);
}

GRAPHKIT_KERNEL_READING("", InstanceNormalization) {
    const TensorSpec& x = node.input(0).tensor;
    const std::int64_t channels = x.shape.at(1);
    if (channels == 0) {
        return nullptr;
    }
    return std::make_unique<GroupNorm>(x.shape, channels, name_of(x.type), node.real("epsilon"), node.threads);
}

GRAPHKIT_KERNEL_READING("", GroupNormalization) {
    const TensorSpec& x = node.input(0).tensor;
    return std::make_unique<GroupNorm>(x.shape, node.integer("num_groups"), name_of(x.type), node.real("epsilon"),
                                       node.threads);
}

GRAPHKIT_KERNEL_READING("", BatchNormalization) {
    const TensorSpec& x = node.input(0).tensor;
    return std::make_unique<BatchNorm>(x.shape, name_of(x.type), name_of(node.input(1).tensor.type),
                                       name_of(node.input(3).tensor.type), node.real("epsilon"),
                                       node.integer("training_mode") != 0, node.real("momentum"), node.threads);
}

GRAPHKIT_KERNEL_READING("", LRN) {
    const TensorSpec& x = node.input(0).tensor;
    return std::make_unique<LocalResponseNorm>(x.shape, name_of(x.type), node.integer("size"), node.real("alpha"),
                                               node.real("beta"), node.real("bias"), node.threads);
}

GRAPHKIT_BINDINGS(norm) {
    nb::class_<LayerNorm, Kernel>(m, "LayerNorm")
        .def(nb::init<const Dims&, std::int64_t, const Dims&, const std::optional<Dims>&, const std::string&, double,
                      bool, const std::string&, bool, int>(),
             "x"_a, "axis"_a, "scale"_a, "bias"_a.none(), "type"_a, "epsilon"_a, "about_mean"_a = true,
             "stash"_a = "float32", "y"_a = true, "threads"_a = 0);
}

}  // namespace graphkit
