// Gradients of normalisations. dscale and dbias are sums over whole channels, or over parts of the rows that depend
// only on the shape, so that results do not depend on the number of threads.
#include <algorithm>
#include <cmath>

#include "kernels/norm/channel_statistics.h"
#include "kernels/norm/norm.h"
#include "runtime/bindings.h"
#include "runtime/recipe.h"

namespace graphkit {
namespace {

// dx, dscale and (LayerNormalization) dbias, from dy, x and scale and, for LayerNormalization, the mean and inverse
// standard deviation of the forward operator, of type `statistics`, which may be absent. dscale and dbias have the
// shape of scale. Unused outputs may be absent.
class LayerNormGrad : public Kernel {
  public:
    LayerNormGrad(const Dims& x, std::int64_t axis, const Dims& scale, const std::string& type, double epsilon,
                  bool about_mean, const std::string& statistics, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    template <typename T>
    void run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const;
    template <typename T>
    void store_total(const Wide<T>* total, Wide<T>* summed, void* to) const;

    ElementType type_;
    ElementType statistics_;
    bool about_mean_;
    double epsilon_;
    std::int64_t rows_ = 1;
    std::int64_t size_ = 1;
    std::int64_t scale_size_ = 1;
    std::int64_t chunks_ = 1;
    std::vector<std::int64_t> scale_offsets_;  // empty if scale has one element for each element of a row
};

// dx, dscale and dbias of BatchNormalization in training, from dy, x and scale.
class BatchNormGrad : public Kernel {
  public:
    BatchNormGrad(const Dims& x, const std::string& type, const std::string& scale_type, double epsilon, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    template <typename T>
    void run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const;

    ElementType type_, scale_type_;
    double epsilon_;
    ChannelGeometry geometry_;
};

constexpr double kElementNanoseconds = 0.4;
// Least elements of a chunk of rows whose parts of dscale and dbias are summed separately, and the largest number of
// chunks.
constexpr std::int64_t kChunkElements = 16384;
constexpr std::int64_t kMostChunks = 64;

}  // namespace

// --- rows -------------------------------------------------------------------------------------------

LayerNormGrad::LayerNormGrad(const Dims& x, std::int64_t axis, const Dims& scale, const std::string& type,
                             double epsilon, bool about_mean, const std::string& statistics, int threads)
    : Kernel(about_mean ? "LayerNormGrad" : "RMSNormGrad", threads),
      type_(float_type(type)),
      statistics_(float_type(statistics)),
      about_mean_(about_mean),
      epsilon_(epsilon) {
    const auto rank = static_cast<std::int64_t>(x.size());
    if (axis < -rank || axis >= rank) {
        throw NativeError(name() + ": axis " + std::to_string(axis) + " is out of range for " + to_string(x));
    }
    const auto first = static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
    Dims shape(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
        (i < first ? rows_ : size_) *= x[i];
        shape[i] = i < first ? x[i] : 1;
    }
    inputs_ = {{"dy", x, type_}, {"x", x, type_}, {"scale", scale, type_}};
    outputs_ = {{"dx", x, type_, true}, {"dscale", scale, type_, true}};
    if (about_mean_) {
        inputs_.push_back({"mean", shape, statistics_, true});
        inputs_.push_back({"inv_std_dev", shape, statistics_, true});
        outputs_.push_back({"db", scale, type_, true});
    }
    const RowVector scales(*this, x, first, scale);
    scale_size_ = count(scale);
    if (!scales.whole()) {
        scale_offsets_ = scales.offsets();
    }
    const std::int64_t most = std::clamp<std::int64_t>(rows_, 1, kMostChunks);
    chunks_ = std::clamp<std::int64_t>(rows_ * size_ / kChunkElements, 1, most);
}

std::size_t LayerNormGrad::scratch_bytes() const {
    const std::size_t row = aligned(static_cast<std::size_t>(size_) * sizeof(double));
    // dscale and dbias of each chunk; scale and two totals; for each thread dy, x and dx.
    return row * static_cast<std::size_t>(2 * chunks_ + 3 + 3 * std::max(threads(), 1));
}

// Writes a sum over rows, which has one element for each element of a row, reduced to the shape of scale.
template <typename T>
void LayerNormGrad::store_total(const Wide<T>* total, Wide<T>* summed, void* to) const {
    if (!scale_offsets_.empty()) {
        std::fill_n(summed, scale_size_, Wide<T>{0});
        for (std::size_t i = 0; i < scale_offsets_.size(); ++i) {
            summed[scale_offsets_[i]] += total[i];
        }
        total = summed;
    }
    store_floats(total, to, type_, scale_size_);
}

template <typename T>
void LayerNormGrad::run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    using W = Wide<T>;
    const std::size_t row_bytes = aligned(static_cast<std::size_t>(size_) * sizeof(double));
    const auto take = [&](std::int64_t rows) {
        auto* memory = reinterpret_cast<W*>(scratch);
        scratch += row_bytes * static_cast<std::size_t>(rows);
        return memory;
    };
    const auto* dy = static_cast<const T*>(inputs[0]);
    const auto* x = static_cast<const T*>(inputs[1]);
    auto* dx = static_cast<T*>(outputs[0]);
    const bool given = about_mean_ && inputs[3] != nullptr && inputs[4] != nullptr;
    const std::int64_t parts = chunks_ * size_;
    W* dscale = take(chunks_);
    W* dbias = take(chunks_);
    W* scale = take(1);
    W* total = take(2);
    std::fill_n(dscale, parts, W{0});
    std::fill_n(dbias, parts, W{0});
    if (scale_offsets_.empty()) {
        load_floats(inputs[2], type_, scale, size_);
    } else {
        load_floats(inputs[2], type_, total, scale_size_);
        for (std::int64_t i = 0; i < size_; ++i) {
            scale[i] = total[scale_offsets_[static_cast<std::size_t>(i)]];
        }
    }
    const RowFunctions<W>& functions = row_table().rows<T>();
    const double cost = kElementNanoseconds * static_cast<double>(size_ * rows_) / static_cast<double>(chunks_);
    parallel_for(threads(), chunks_, cost, [&](std::int64_t begin, std::int64_t end) {
        auto* memory = reinterpret_cast<W*>(scratch + 3 * row_bytes * static_cast<std::size_t>(thread_number()));
        W* buffers[3] = {memory, memory + size_, memory + 2 * size_};
        for (std::int64_t row = rows_ * begin / chunks_; row < rows_ * end / chunks_; ++row) {
            // The chunk that contains this row.
            const std::int64_t chunk = ((row + 1) * chunks_ - 1) / rows_;
            const W* g = widened(dy + row * size_, buffers[0], size_);
            const W* v = widened(x + row * size_, buffers[1], size_);
            W* to = dx == nullptr ? buffers[2] : target(dx + row * size_, buffers[2]);
            W mean = 0;
            W inverse = 0;
            if (given) {
                const std::int64_t at = row * static_cast<std::int64_t>(size_of(statistics_));
                load_floats(static_cast<const std::byte*>(inputs[3]) + at, statistics_, &mean, 1);
                load_floats(static_cast<const std::byte*>(inputs[4]) + at, statistics_, &inverse, 1);
            } else if (about_mean_) {
                functions.layer_norm(v, nullptr, nullptr, static_cast<W>(epsilon_), buffers[2], size_, &mean, &inverse);
            } else {
                functions.rms_norm(v, nullptr, static_cast<W>(epsilon_), buffers[2], size_, &inverse);
            }
            functions.norm_grad(g, v, scale, mean, inverse, about_mean_, to, dscale + chunk * size_,
                                about_mean_ ? dbias + chunk * size_ : nullptr, size_);
            if (dx != nullptr) {
                narrowed(to, dx + row * size_, size_);
            }
        }
    });
    const auto reduce_chunks = [&](const W* from, void* to) {
        if (to == nullptr || size_ == 0) {
            return;
        }
        for (std::int64_t at = 0; at < size_; at += kReductionTile) {
            reduction_table()
                .reduction<W>(Reduction::sum)
                .columns(from + at, chunks_, size_, std::min(kReductionTile, size_ - at), nullptr, total + at);
        }
        store_total<T>(total, total + size_, to);
    };
    reduce_chunks(dscale, outputs[1]);
    if (about_mean_) {
        reduce_chunks(dbias, outputs[2]);
    }
}

void LayerNormGrad::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    with_float_type(type_, [&]<typename T>() { run_as<T>(inputs, outputs, scratch); });
}

// --- channels ---------------------------------------------------------------------------------------

BatchNormGrad::BatchNormGrad(const Dims& x, const std::string& type, const std::string& scale_type, double epsilon,
                             int threads)
    : Kernel("BatchNormGrad", threads),
      type_(float_type(type)),
      scale_type_(float_type(scale_type)),
      epsilon_(epsilon),
      geometry_(x) {
    if (x.empty()) {
        throw NativeError(name() + ": x has no batch axis");
    }
    const Dims vector{geometry_.channels};
    inputs_ = {{"dy", x, type_}, {"x", x, type_}, {"scale", vector, scale_type_}};
    outputs_ = {{"dx", x, type_, true}, {"dscale", vector, scale_type_, true}, {"db", vector, scale_type_, true}};
}

std::size_t BatchNormGrad::scratch_bytes() const {
    return 8 * static_cast<std::size_t>(geometry_.channels) * sizeof(double);
}

namespace {

// out[i] = the sum of dy * (x - mean[i]) over channel first + i, for a group of channels.
template <typename T>
void dot_channels(const ChannelGeometry& g, const T* dy, const T* x, std::int64_t first, std::int64_t count,
                  const Wide<T>* mean, Wide<T>* out) {
    using W = Wide<T>;
    const RowFunctions<W>& functions = row_table().rows<T>();
    Block<T> wide_dy;
    Block<T> wide_x;
    if (g.inner == 1) {
        std::fill_n(out, count, W{0});
        for (std::int64_t image = 0; image < g.images; ++image) {
            const std::int64_t at = image * g.channels + first;
            functions.add_products_about(widened(dy + at, wide_dy, count), widened(x + at, wide_x, count), mean, out,
                                         count);
        }
        return;
    }
    for (std::int64_t i = 0; i < count; ++i) {
        double total = 0;
        for (std::int64_t image = 0; image < g.images; ++image) {
            const std::int64_t at = g.offset(image, first + i);
            for_each_block<T>(g.inner, [&](std::int64_t begin, std::int64_t size) {
                total += static_cast<double>(functions.dot_about(widened(dy + at + begin, wide_dy, size),
                                                                 widened(x + at + begin, wide_x, size), mean[i], size));
            });
        }
        out[i] = static_cast<W>(total);
    }
}

}  // namespace

template <typename T>
void BatchNormGrad::run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    using W = Wide<T>;
    const ChannelGeometry& g = geometry_;
    const auto* dy = static_cast<const T*>(inputs[0]);
    const auto* x = static_cast<const T*>(inputs[1]);
    auto* dx = static_cast<T*>(outputs[0]);
    auto* scale = reinterpret_cast<W*>(scratch);
    W* mean = scale + g.channels;
    W* inverse = mean + g.channels;
    W* dscale = inverse + g.channels;
    W* dbias = dscale + g.channels;
    // dx = a * dy + b * (x - mean) + c.
    W* a = dbias + g.channels;
    W* b = a + g.channels;
    W* c = b + g.channels;
    load_floats(inputs[2], scale_type_, scale, g.channels);
    const RowFunctions<W>& functions = row_table().rows<T>();
    const auto elements = static_cast<W>(g.count());
    for_each_channel_group(g, threads(), 2 * kElementNanoseconds, [&](std::int64_t first, std::int64_t size) {
        channel_statistics(g, x, first, size, epsilon_, mean + first, inverse + first, static_cast<W*>(nullptr));
        reduce_channels(g, Reduction::sum, dy, first, size, nullptr, dbias + first);
        dot_channels(g, dy, x, first, size, mean + first, dscale + first);
        for (std::int64_t i = first; i < first + size; ++i) {
            dscale[i] *= inverse[i];
            a[i] = scale[i] * inverse[i];
            b[i] = -a[i] * inverse[i] * (dscale[i] / elements);
            c[i] = -a[i] * (dbias[i] / elements);
        }
        if (dx == nullptr) {
            return;
        }
        Block<T> wide_dy;
        Block<T> wide_x;
        for (std::int64_t image = 0; image < g.images; ++image) {
            if (g.inner == 1) {
                const std::int64_t at = image * g.channels + first;
                W* to = target(dx + at, wide_dy);
                functions.blend_each(widened(dy + at, wide_dy, size), a + first, widened(x + at, wide_x, size),
                                     mean + first, b + first, c + first, to, size);
                narrowed(to, dx + at, size);
                continue;
            }
            for (std::int64_t i = first; i < first + size; ++i) {
                for_each_block<T>(g.inner, [&](std::int64_t begin, std::int64_t part) {
                    const std::int64_t at = g.offset(image, i) + begin;
                    W* to = target(dx + at, wide_dy);
                    functions.blend(widened(dy + at, wide_dy, part), a[i], widened(x + at, wide_x, part), mean[i], b[i],
                                    c[i], to, part);
                    narrowed(to, dx + at, part);
                });
            }
        }
    });
    for (const int which : {1, 2}) {
        if (outputs[which] != nullptr) {
            store_floats(which == 1 ? dscale : dbias, outputs[which], scale_type_, g.channels);
        }
    }
}

void BatchNormGrad::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    with_float_type(type_, [&]<typename T>() { run_as<T>(inputs, outputs, scratch); });
}

static const RecipeConstructor<LayerNormGrad, const Dims&, std::int64_t, const Dims&, const std::string&, double, bool,
                               const std::string&, int>
    layer_norm_grad_recipe("LayerNormGrad");
static const RecipeConstructor<BatchNormGrad, const Dims&, const std::string&, const std::string&, double, int>
    batch_norm_grad_recipe("BatchNormGrad");

GRAPHKIT_BINDINGS(norm_grad) {
    nb::class_<LayerNormGrad, Kernel>(m, "LayerNormGrad")
        .def("__init__", layer_norm_grad_recipe.init(), "x"_a, "axis"_a, "scale"_a, "type"_a, "epsilon"_a,
             "about_mean"_a = true, "statistics"_a = "float32", "threads"_a = 0);
    nb::class_<BatchNormGrad, Kernel>(m, "BatchNormGrad")
        .def("__init__", batch_norm_grad_recipe.init(), "x"_a, "type"_a, "scale_type"_a, "epsilon"_a, "threads"_a = 0);
}

}  // namespace graphkit
