// Classification losses and their gradient.
//
// Scores are [N, C, d1, ..., dk] with the classes on axis 1, labels [N, d1, ..., dk], weights [C]. A label equal to
// `ignore_index` has weight 0; for any other label outside of [0, C), run throws NativeError. Sums are divided into
// parts that do not depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/softmax/softmax.h"
#include "primitives/float_type.h"
#include "primitives/reduction.h"
#include "runtime/bindings.h"
#include "runtime/kernel.h"
#include "runtime/recipe.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

enum class LossReduction : std::uint8_t { none, sum, mean };

// The shape of the scores, as [images, classes, inner], and how labels are read. The losses and their gradients use
// this.
struct LabelGeometry {
    std::int64_t images = 1;
    std::int64_t classes = 1;
    std::int64_t inner = 1;
    ElementType label_type = ElementType::i64;
    std::optional<std::int64_t> ignore_index;
    LossReduction reduction = LossReduction::mean;

    LabelGeometry() = default;
    LabelGeometry(const Dims& scores, const std::string& label_type, const std::string& reduction,
                  std::optional<std::int64_t> ignore_index);

    std::int64_t count() const { return images * inner; }
    // safe[i] = the label, or -1 if it is ignored. Throws NativeError for a label that is out of range.
    void read_labels(const void* labels, std::int64_t* safe) const;
};

// NegativeLogLikelihoodLoss or, with `softmax`, SoftmaxCrossEntropyLoss, whose second output (the log-probabilities)
// may be absent.
class ClassLoss : public Kernel {
  public:
    ClassLoss(const Dims& scores, const std::string& type, const std::string& label_type, bool weights,
              const std::string& reduction, std::optional<std::int64_t> ignore_index, bool softmax, int threads);
    ~ClassLoss() override;

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

    struct Normaliser;

  private:
    template <typename T>
    void run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const;

    ElementType type_;
    LabelGeometry geometry_;
    bool weights_, softmax_;
    Softmax log_softmax_;
    std::unique_ptr<Normaliser> normaliser_;
};

// dscores of SoftmaxCrossEntropyLoss from dloss, the log-probabilities, labels and weights. dscores may share the
// memory of the log-probabilities.
class SoftmaxCrossEntropyGrad : public Kernel {
  public:
    SoftmaxCrossEntropyGrad(const Dims& scores, const std::string& type, const std::string& label_type, bool weights,
                            const std::string& reduction, std::optional<std::int64_t> ignore_index, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<std::pair<int, int>> inplace() const override { return {{1, 0}}; }

  private:
    template <typename T>
    void run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const;

    ElementType type_;
    LabelGeometry geometry_;
};

// SoftmaxCrossEntropyLoss with a scalar loss, and its gradient for a given dloss, in one pass over the scores, which
// are rows of classes. dscores may share the memory of the scores. Operands: scores, labels, dloss, weights.
class SoftmaxCrossEntropyWithGrad : public Kernel {
  public:
    SoftmaxCrossEntropyWithGrad(const Dims& scores, const std::string& type, const std::string& label_type,
                                bool weights, const std::string& reduction, std::optional<std::int64_t> ignore_index,
                                int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<std::pair<int, int>> inplace() const override { return {{0, 1}}; }

  private:
    std::size_t row_bytes() const;
    template <typename T>
    void run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const;

    ElementType type_;
    LabelGeometry geometry_;
};

constexpr double kElementNanoseconds = 0.5;
// Number of labels whose losses are summed together, and elements of a tile of scores.
constexpr std::int64_t kSumBlock = 4096;
constexpr std::int64_t kTile = 1024;

Dims label_shape(const Dims& scores) {
    Dims shape(scores);
    shape.erase(shape.begin() + 1);
    return shape;
}

double block_sum(const double* values, std::int64_t size) {
    double total = 0;
    for (std::int64_t at = 0; at < size; at += kSumBlock) {
        double part = 0;
        for (std::int64_t i = at; i < std::min(size, at + kSumBlock); ++i) {
            part += values[i];
        }
        total += part;
    }
    return total;
}

// weight[i] = the weight of label i; 0 if it is ignored.
template <typename T>
void label_weights(const LabelGeometry& g, const std::int64_t* labels, const void* weights, double* weight) {
    for (std::int64_t i = 0; i < g.count(); ++i) {
        weight[i] = labels[i] < 0 ? 0 : 1;
        if (weights != nullptr && labels[i] >= 0) {
            Wide<T> buffer;
            weight[i] = static_cast<double>(*widened(static_cast<const T*>(weights) + labels[i], &buffer, 1));
        }
    }
}

// The labels and weights of a run, at the beginning of its working memory; `rest` is the memory behind them.
struct Labels {
    const std::int64_t* label;  // -1 if it is ignored
    const double* weight;
    std::byte* rest;

    // Bytes of one number for each label.
    static std::size_t bytes(const LabelGeometry& g) {
        return aligned(static_cast<std::size_t>(g.count()) * sizeof(double));
    }

    template <typename T>
    static Labels read(const LabelGeometry& g, const void* labels, const void* weights, std::byte* scratch) {
        auto* label = reinterpret_cast<std::int64_t*>(scratch);
        auto* weight = reinterpret_cast<double*>(scratch + bytes(g));
        g.read_labels(labels, label);
        label_weights<T>(g, label, weights, weight);
        return {label, weight, scratch + 2 * bytes(g)};
    }
};

// scale[i] = the factor of label i in the gradient of a scalar loss: weight * dloss, divided by the total weight for a
// mean.
template <typename W>
void label_scales(const LabelGeometry& g, const double* weight, double dloss, W* scale) {
    const double total = g.reduction == LossReduction::mean ? block_sum(weight, g.count()) : 1;
    for (std::int64_t i = 0; i < g.count(); ++i) {
        scale[i] = static_cast<W>(weight[i] * dloss / total);
    }
}

// Returns the sum or the mean of the losses of all labels.
double total_loss(const LabelGeometry& g, const double* weight, const double* loss) {
    const double total = block_sum(loss, g.count());
    return g.reduction == LossReduction::mean ? total / block_sum(weight, g.count()) : total;
}

}  // namespace

LabelGeometry::LabelGeometry(const Dims& scores, const std::string& label_name, const std::string& reduction_name,
                             std::optional<std::int64_t> ignored)
    : label_type(element_type(label_name)), ignore_index(ignored) {
    if (scores.size() < 2) {
        throw NativeError("scores " + to_string(scores) + " have no class axis");
    }
    if (label_type != ElementType::i32 && label_type != ElementType::i64) {
        throw Unsupported("labels of type " + label_name);
    }
    images = scores[0];
    classes = scores[1];
    inner = graphkit::count(Dims(scores.begin() + 2, scores.end()));
    reduction = reduction_name == "none"  ? LossReduction::none
                : reduction_name == "sum" ? LossReduction::sum
                                          : LossReduction::mean;
}

void LabelGeometry::read_labels(const void* labels, std::int64_t* safe) const {
    for (std::int64_t i = 0; i < count(); ++i) {
        const std::int64_t label = label_type == ElementType::i32 ? static_cast<const std::int32_t*>(labels)[i]
                                                                  : static_cast<const std::int64_t*>(labels)[i];
        const bool ignored = ignore_index && label == *ignore_index;
        safe[i] = ignored ? -1 : label;
        if (!ignored && (label < 0 || label >= classes)) {
            throw NativeError("label " + std::to_string(label) + " is outside [0, " + std::to_string(classes) +
                              ") and is not ignore_index");
        }
    }
}

// --- the losses -------------------------------------------------------------------------------------

// Computes log(sum(exp(scores))) for each label, without the log-probabilities.
struct ClassLoss::Normaliser {
    virtual ~Normaliser() = default;
    virtual std::size_t scratch_bytes() const = 0;
};

namespace {

template <typename T>
struct TypedNormaliser : ClassLoss::Normaliser {
    explicit TypedNormaliser(const LabelGeometry& g)
        : count(g.count()),
          largest(ReductionGeometry({g.images, g.classes, g.inner}, {false, true, false}), Reduction::largest),
          sum(ReductionGeometry({g.images, g.classes, g.inner}, {false, true, false}), Reduction::sum_exp) {}

    std::size_t scratch_bytes() const override {
        const std::int64_t partial = std::max(largest.partial_count(), sum.partial_count());
        return aligned(static_cast<std::size_t>(2 * count + partial) * sizeof(Wide<T>));
    }

    // Returns the largest score of each label, followed by the logarithms of the sums of exp(score - largest).
    Wide<T>* run(const T* scores, std::byte* scratch, int threads) const {
        auto* shift = reinterpret_cast<Wide<T>*>(scratch);
        Wide<T>* log_sum = shift + count;
        largest.run(scores, nullptr, shift, log_sum + count, threads);
        sum.run(scores, shift, log_sum, log_sum + count, threads);
        parallel_for(threads, count, 10, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) {
                log_sum[i] = std::log(log_sum[i]);
            }
        });
        return shift;
    }

    std::int64_t count;
    Reducer<T> largest;
    Reducer<T> sum;
};

}  // namespace

ClassLoss::ClassLoss(const Dims& scores, const std::string& type, const std::string& label_type, bool weights,
                     const std::string& reduction, std::optional<std::int64_t> ignore_index, bool softmax, int threads)
    : Kernel(softmax ? "SoftmaxCrossEntropyLoss" : "NegativeLogLikelihoodLoss", threads),
      type_(float_type(type)),
      geometry_(scores, label_type, reduction, ignore_index),
      weights_(weights),
      softmax_(softmax),
      log_softmax_(scores, 1, type, true, threads) {
    const Dims labels = label_shape(scores);
    inputs_ = {{"scores", scores, type_}, {"labels", labels, geometry_.label_type}};
    if (weights) {
        inputs_.push_back({"weights", {geometry_.classes}, type_});
    }
    outputs_ = {{"loss", geometry_.reduction == LossReduction::none ? labels : Dims{}, type_, true}};
    if (softmax) {
        outputs_.push_back({"log_prob", scores, type_, true});
        with_float_type(type_, [&]<typename T>() { normaliser_ = std::make_unique<TypedNormaliser<T>>(geometry_); });
    }
}

ClassLoss::~ClassLoss() = default;

std::size_t ClassLoss::scratch_bytes() const {
    // Labels, weights and losses; then the memory of the log-softmax or of the normaliser.
    const std::size_t own = 3 * Labels::bytes(geometry_);
    return own + (softmax_ ? std::max(log_softmax_.scratch_bytes(), normaliser_->scratch_bytes()) : 0);
}

template <typename T>
void ClassLoss::run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    using W = Wide<T>;
    const LabelGeometry& g = geometry_;
    const auto [labels, weight, rest] = Labels::read<T>(g, inputs[1], weights_ ? inputs[2] : nullptr, scratch);
    auto* loss = reinterpret_cast<double*>(rest);
    scratch = rest + Labels::bytes(g);
    const auto* scores = static_cast<const T*>(inputs[0]);
    const W* largest = nullptr;
    if (softmax_ && outputs[1] != nullptr) {
        log_softmax_.run(inputs, outputs + 1, scratch);
        if constexpr (!kIsHalf<T>) {
            scores = static_cast<const T*>(outputs[1]);
        }
    }
    if (softmax_ && (kIsHalf<T> || outputs[1] == nullptr)) {
        largest = static_cast<const TypedNormaliser<T>&>(*normaliser_).run(scores, scratch, threads());
    }
    if (outputs[0] == nullptr) {
        return;
    }
    parallel_for(threads(), g.count(), 3, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            loss[i] = 0;  // an ignored label counts as 0, even if its loss is infinite
            if (labels[i] >= 0) {
                W buffer;
                const std::int64_t at = (i / g.inner * g.classes + labels[i]) * g.inner + i % g.inner;
                const W score = *widened(scores + at, &buffer, 1);
                const W log_prob = largest == nullptr ? score : (score - largest[i]) - largest[g.count() + i];
                loss[i] = -static_cast<double>(log_prob) * weight[i];
            }
        }
    });
    if (g.reduction == LossReduction::none) {
        store_floats(loss, outputs[0], type_, g.count());
        return;
    }
    const double total = total_loss(g, weight, loss);
    store_floats(&total, outputs[0], type_, 1);
}

void ClassLoss::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    with_float_type(type_, [&]<typename T>() { run_as<T>(inputs, outputs, scratch); });
}

// --- the gradient -----------------------------------------------------------------------------------

SoftmaxCrossEntropyGrad::SoftmaxCrossEntropyGrad(const Dims& scores, const std::string& type,
                                                 const std::string& label_type, bool weights,
                                                 const std::string& reduction, std::optional<std::int64_t> ignore_index,
                                                 int threads)
    : Kernel("SoftmaxCrossEntropyGrad", threads),
      type_(float_type(type)),
      geometry_(scores, label_type, reduction, ignore_index) {
    const Dims labels = label_shape(scores);
    inputs_ = {{"dloss", geometry_.reduction == LossReduction::none ? labels : Dims{}, type_},
               {"log_prob", scores, type_},
               {"labels", labels, geometry_.label_type}};
    if (weights) {
        inputs_.push_back({"weights", {geometry_.classes}, type_});
    }
    outputs_ = {{"dscores", scores, type_}};
}

std::size_t SoftmaxCrossEntropyGrad::scratch_bytes() const {
    return 3 * Labels::bytes(geometry_);
}

template <typename T>
void SoftmaxCrossEntropyGrad::run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    using W = Wide<T>;
    const LabelGeometry& g = geometry_;
    const void* weights = this->inputs().size() > 3 ? inputs[3] : nullptr;
    const auto [labels, weight, rest] = Labels::read<T>(g, inputs[2], weights, scratch);
    auto* scale = reinterpret_cast<W*>(rest);
    const auto* log_prob = static_cast<const T*>(inputs[1]);
    auto* dscores = static_cast<T*>(outputs[0]);
    if (g.reduction == LossReduction::none) {
        load_floats(inputs[0], type_, scale, g.count());
        for (std::int64_t i = 0; i < g.count(); ++i) {
            scale[i] *= static_cast<W>(weight[i]);
        }
    } else {
        W dloss;
        load_floats(inputs[0], type_, &dloss, 1);
        label_scales(g, weight, static_cast<double>(dloss), scale);
    }
    const RowFunctions<W>& functions = row_table().rows<T>();
    // Tiles are rows of classes, or parts of a row of positions.
    const bool along = g.inner == 1;
    const std::int64_t tiles = along ? 1 : (g.inner + kTile - 1) / kTile;
    const std::int64_t elements = g.classes * (along ? 1 : std::min(kTile, g.inner));
    const double cost = 5 + kElementNanoseconds * static_cast<double>(elements);
    parallel_for(threads(), g.images * tiles, cost, [&](std::int64_t begin, std::int64_t end) {
        Block<T> block;
        for (std::int64_t item = begin; item < end; ++item) {
            if (along) {
                const std::int64_t label = labels[item];
                for_each_block<T>(g.classes, [&](std::int64_t at, std::int64_t size) {
                    const std::int64_t from = item * g.classes + at;
                    W* to = target(dscores + from, block);
                    functions.scaled_exp(widened(log_prob + from, block, size), scale[item], to, size);
                    if (label >= at && label < at + size) {
                        to[label - at] -= scale[item];
                    }
                    narrowed(to, dscores + from, size);
                });
                continue;
            }
            const std::int64_t column = item % tiles * kTile;
            const std::int64_t size = std::min(kTile, g.inner - column);
            const std::int64_t first = item / tiles * g.inner + column;  // index of the tile's first label
            for (std::int64_t c = 0; c < g.classes; ++c) {
                const std::int64_t from = (item / tiles * g.classes + c) * g.inner + column;
                W* to = target(dscores + from, block);
                functions.scaled_exp_each(widened(log_prob + from, block, size), scale + first, to, size);
                for (std::int64_t i = 0; i < size; ++i) {
                    to[i] -= labels[first + i] == c ? scale[first + i] : W{0};
                }
                narrowed(to, dscores + from, size);
            }
        }
    });
}

void SoftmaxCrossEntropyGrad::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    with_float_type(type_, [&]<typename T>() { run_as<T>(inputs, outputs, scratch); });
}

// --- both -------------------------------------------------------------------------------------------

SoftmaxCrossEntropyWithGrad::SoftmaxCrossEntropyWithGrad(const Dims& scores, const std::string& type,
                                                         const std::string& label_type, bool weights,
                                                         const std::string& reduction,
                                                         std::optional<std::int64_t> ignore_index, int threads)
    : Kernel("SoftmaxCrossEntropyWithGrad", threads),
      type_(float_type(type)),
      geometry_(scores, label_type, reduction, ignore_index) {
    if (geometry_.reduction == LossReduction::none || geometry_.inner != 1) {
        throw Unsupported(name() + ": a loss that is no number, or scores that are no rows");
    }
    inputs_ = {{"scores", scores, type_}, {"labels", label_shape(scores), geometry_.label_type}, {"dloss", {}, type_}};
    if (weights) {
        inputs_.push_back({"weights", {geometry_.classes}, type_});
    }
    outputs_ = {{"loss", {}, type_, true}, {"dscores", scores, type_, true}};
}

std::size_t SoftmaxCrossEntropyWithGrad::scratch_bytes() const {
    return 4 * Labels::bytes(geometry_) + static_cast<std::size_t>(std::max(threads(), 1)) * row_bytes();
}

// Bytes of a float copy of a row, for results that are not outputs.
std::size_t SoftmaxCrossEntropyWithGrad::row_bytes() const {
    return aligned(static_cast<std::size_t>(geometry_.classes) * std::max(size_of(type_), sizeof(float)));
}

template <typename T>
void SoftmaxCrossEntropyWithGrad::run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    using W = Wide<T>;
    const LabelGeometry& g = geometry_;
    const void* weights = this->inputs().size() > 3 ? inputs[3] : nullptr;
    const auto [labels, weight, rest] = Labels::read<T>(g, inputs[1], weights, scratch);
    auto* loss = reinterpret_cast<double*>(rest);
    auto* scale = reinterpret_cast<W*>(rest + Labels::bytes(g));
    scratch = rest + 2 * Labels::bytes(g);
    W dloss;
    load_floats(inputs[2], type_, &dloss, 1);
    label_scales(g, weight, static_cast<double>(dloss), scale);
    const auto* scores = static_cast<const T*>(inputs[0]);
    auto* dscores = static_cast<T*>(outputs[1]);
    const RowFunctions<W>& functions = row_table().rows<T>();
    const double cost = 10 + 2 * kElementNanoseconds * static_cast<double>(g.classes);
    parallel_for(threads(), g.images, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            T* to = dscores == nullptr ? nullptr : dscores + i * g.classes;
            auto* row = reinterpret_cast<W*>(scratch + thread_number() * row_bytes());
            const W* wide = widened(scores + i * g.classes, row, g.classes);
            if constexpr (!kIsHalf<T>) {
                row = to == nullptr ? row : to;
            }
            const W score = labels[i] < 0 ? W{0} : wide[labels[i]];
            W largest;
            W log_sum;
            functions.scaled_softmax(wide, scale[i], row, g.classes, &largest, &log_sum);
            loss[i] = 0;  // an ignored label counts as 0, even if its loss is infinite
            if (labels[i] >= 0) {
                loss[i] = -static_cast<double>((score - largest) - log_sum) * weight[i];
                row[labels[i]] -= scale[i];
            }
            if (to != nullptr) {
                narrowed(row, to, g.classes);
            }
        }
    });
    if (outputs[0] != nullptr) {
        const double total = total_loss(g, weight, loss);
        store_floats(&total, outputs[0], type_, 1);
    }
}

void SoftmaxCrossEntropyWithGrad::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    with_float_type(type_, [&]<typename T>() { run_as<T>(inputs, outputs, scratch); });
}

static const RecipeKind class_loss_recipe(
    "ClassLoss",
    +[](ClassLoss* self, const Dims& scores, const std::string& type, const std::string& label_type, bool weights,
        const std::string& reduction, std::optional<std::int64_t> ignore_index, bool softmax, int threads) {
        new (self) ClassLoss(scores, type, label_type, weights, reduction, ignore_index, softmax, threads);
    });

static const RecipeConstructor<SoftmaxCrossEntropyGrad, const Dims&, const std::string&, const std::string&, bool,
                               const std::string&, std::optional<std::int64_t>, int>
    softmax_cross_entropy_grad_recipe("SoftmaxCrossEntropyGrad");
static const RecipeConstructor<SoftmaxCrossEntropyWithGrad, const Dims&, const std::string&, const std::string&, bool,
                               const std::string&, std::optional<std::int64_t>, int>
    softmax_cross_entropy_with_grad_recipe("SoftmaxCrossEntropyWithGrad");

GRAPHKIT_BINDINGS(loss) {
    nb::class_<ClassLoss, Kernel>(m, "ClassLoss")
        .def("__init__", class_loss_recipe.init(), "scores"_a, "type"_a, "label_type"_a, "weights"_a, "reduction"_a,
             "ignore_index"_a.none(), "softmax"_a, "threads"_a = 0);
    nb::class_<SoftmaxCrossEntropyGrad, Kernel>(m, "SoftmaxCrossEntropyGrad")
        .def("__init__", softmax_cross_entropy_grad_recipe.init(), "scores"_a, "type"_a, "label_type"_a, "weights"_a,
             "reduction"_a, "ignore_index"_a.none(), "threads"_a = 0);
    nb::class_<SoftmaxCrossEntropyWithGrad, Kernel>(m, "SoftmaxCrossEntropyWithGrad")
        .def("__init__", softmax_cross_entropy_with_grad_recipe.init(), "scores"_a, "type"_a, "label_type"_a,
             "weights"_a, "reduction"_a, "ignore_index"_a.none(), "threads"_a = 0);
}

}  // namespace graphkit
