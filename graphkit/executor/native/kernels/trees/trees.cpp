// Ensembles of trees: TreeEnsembleRegressor, TreeEnsembleClassifier and TreeEnsemble.
#include <nanobind/stl/shared_ptr.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/trees/finish.h"
#include "kernels/trees/forest.h"
#include "primitives/elements.h"
#include "runtime/bindings.h"
#include "runtime/recipe.h"

namespace graphkit {
namespace {

// Most rows of a block. A block is traversed tree by tree, so that the tree stays in the cache. A block has fewer rows
// if its scores would exceed kBlockScores.
constexpr std::int64_t kBlock = 128;
constexpr std::int64_t kBlockScores = 1 << 16;
// Estimated nanoseconds of a step to a child, with many steps in flight.
constexpr double kStep = 0.8;

template <typename T>
class TreeEnsemble final : public Kernel {
  public:
    TreeEnsemble(Dims x, ElementType type, Dims y, ElementType result, std::shared_ptr<const WalkedForest<T>> forest,
                 std::int64_t targets, Finish finish, int threads);
    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    static constexpr std::int64_t kLanes = WalkedForest<T>::kLanes;

    struct Memory {
        T* x;               // rows, converted to the type of the trees
        T* scores;          // of a block of rows
        std::uint8_t* has;  // which of the scores received a weight
    };
    Memory memory(std::byte* scratch) const;
    std::size_t thread_bytes() const;
    std::size_t leaves_bytes() const;
    bool is_few() const { return rows_ < kLanes; }
    // Rows of a block.
    std::int64_t block() const {
        return is_few() ? rows_ : std::min(rows_, std::clamp(kBlockScores / targets_, kLanes, kBlock));
    }

    void rows(const std::byte* x, void* const* outputs, std::int64_t begin, std::int64_t end, const Memory& own) const;
    void few(const std::byte* x, void* const* outputs, std::byte* scratch) const;
    const T* converted(const std::byte* x, std::int64_t begin, std::int64_t count, T* to) const;
    void start(const Memory& own, std::int64_t count) const;
    void add(std::int32_t leaf, T* scores, std::uint8_t* has) const;
    void write(void* const* outputs, std::int64_t begin, std::int64_t count, const Memory& own) const;

    std::int64_t rows_ = 1, features_ = 0, targets_;
    ElementType type_, result_;
    std::shared_ptr<const WalkedForest<T>> forest_;
    Finish finish_;
};

template <typename T>
constexpr ElementType kTypeOf = std::is_same_v<T, float> ? ElementType::f32 : ElementType::f64;

template <typename T>
TreeEnsemble<T>::TreeEnsemble(Dims x, ElementType type, Dims y, ElementType result,
                              std::shared_ptr<const WalkedForest<T>> forest, std::int64_t targets, Finish finish,
                              int threads)
    : Kernel("TreeEnsemble", threads),
      targets_(targets),
      type_(type),
      result_(result),
      forest_(std::move(forest)),
      finish_(std::move(finish)) {
    if (x.empty() || x.size() > 2 || targets < 1) {
        throw NativeError("TreeEnsemble takes a vector or a matrix");
    }
    if (forest_->targets() != targets) {
        throw NativeError("the trees have " + std::to_string(forest_->targets()) + " targets, but the output has " +
                          std::to_string(targets));
    }
    rows_ = x.size() == 2 ? x[0] : 1;
    features_ = x.back();
    if (rows_ > 0 && forest_->last_feature() >= features_) {
        throw NativeError("the trees read feature " + std::to_string(forest_->last_feature()) +
                          " (counted from 0), but x has only " + std::to_string(features_));
    }
    inputs_ = {{"x", x, type}};
    const bool classifies = !finish_.labels.empty();
    if (classifies) {
        outputs_ = {{"y", {rows_}, ElementType::i64, true}, {"z", y, ElementType::f32, true}};
    } else {
        outputs_ = {{"y", y, result}};
    }
    if (classifies && static_cast<std::int64_t>(finish_.base.size()) > targets) {
        throw NativeError(describe() + ": there are more base values than classes");
    }
    if (y != Dims{rows_, targets} || (classifies && static_cast<std::int64_t>(finish_.labels.size()) != targets)) {
        throw NativeError(describe() + ": the shape of the output, or the number of labels, does not fit");
    }
}

template <typename T>
std::size_t TreeEnsemble<T>::thread_bytes() const {
    const auto block = static_cast<std::size_t>(this->block());
    const std::size_t copied = type_ == kTypeOf<T> ? 0 : block * static_cast<std::size_t>(features_) * sizeof(T);
    const std::size_t scores = block * static_cast<std::size_t>(targets_);
    return aligned(copied) + aligned(scores * sizeof(T)) + aligned(scores);
}

template <typename T>
std::size_t TreeEnsemble<T>::leaves_bytes() const {
    const std::int64_t groups = (forest_->trees() + kLanes - 1) / kLanes;
    return is_few() ? aligned(static_cast<std::size_t>(rows_ * groups * kLanes) * sizeof(std::int32_t)) : 0;
}

template <typename T>
std::size_t TreeEnsemble<T>::scratch_bytes() const {
    return leaves_bytes() + static_cast<std::size_t>(is_few() ? 1 : std::max(threads(), 1)) * thread_bytes();
}

template <typename T>
typename TreeEnsemble<T>::Memory TreeEnsemble<T>::memory(std::byte* scratch) const {
    const auto block = static_cast<std::size_t>(this->block());
    const std::size_t copied = type_ == kTypeOf<T> ? 0 : block * static_cast<std::size_t>(features_) * sizeof(T);
    std::byte* const scores = scratch + aligned(copied);
    std::byte* const has = scores + aligned(block * static_cast<std::size_t>(targets_) * sizeof(T));
    return {reinterpret_cast<T*>(scratch), reinterpret_cast<T*>(scores), reinterpret_cast<std::uint8_t*>(has)};
}

// Returns rows [begin, begin + count) in the type of the trees.
template <typename T>
const T* TreeEnsemble<T>::converted(const std::byte* x, std::int64_t begin, std::int64_t count, T* to) const {
    const std::int64_t size = count * features_;
    if (type_ == kTypeOf<T>) {
        return reinterpret_cast<const T*>(x) + begin * features_;
    }
    const auto convert = [&]<typename From>(From) {
        const auto* from = reinterpret_cast<const From*>(x) + begin * features_;
        std::transform(from, from + size, to, [](From value) { return static_cast<T>(value); });
    };
    switch (type_) {
        case ElementType::f32:
            convert(float{});
            break;
        case ElementType::f64:
            convert(double{});
            break;
        case ElementType::i32:
            convert(std::int32_t{});
            break;
        case ElementType::i64:
            convert(std::int64_t{});
            break;
        default:
            throw Unsupported(describe());
    }
    return to;
}

template <typename T>
void TreeEnsemble<T>::start(const Memory& own, std::int64_t count) const {
    std::fill(own.scores, own.scores + count * targets_, T(0));
    std::fill(own.has, own.has + count * targets_, std::uint8_t{0});
}

template <typename T>
void TreeEnsemble<T>::add(std::int32_t leaf, T* scores, std::uint8_t* has) const {
    const bool sums = finish_.aggregate == Aggregate::sum || finish_.aggregate == Aggregate::average;
    const LeafWeight<T>* const end = forest_->weights_end(leaf);
    for (const LeafWeight<T>* entry = forest_->weights(leaf); entry != end; ++entry) {
        T& score = scores[entry->target];
        if (sums) {
            score += entry->weight;
        } else if (has[entry->target] == 0) {
            score = entry->weight;
        } else {
            const bool less = finish_.aggregate == Aggregate::least;
            score = (less ? entry->weight < score : entry->weight > score) ? entry->weight : score;
        }
        has[entry->target] = 1;
    }
}

template <typename T>
void TreeEnsemble<T>::write(void* const* outputs, std::int64_t begin, std::int64_t count, const Memory& own) const {
    const bool classifies = !finish_.labels.empty();
    for (std::int64_t row = 0; row < count; ++row) {
        T* const scores = own.scores + row * targets_;
        std::uint8_t* const has = own.has + row * targets_;
        const std::int64_t at = begin + row;
        if (classifies) {
            float few[64];
            std::vector<float> many(targets_ > 64 ? static_cast<std::size_t>(targets_) : 0);
            float* const z = targets_ > 64 ? many.data() : few;
            const std::int64_t label = finish_.classify(scores, has, targets_, z);
            if (outputs[0] != nullptr) {
                static_cast<std::int64_t*>(outputs[0])[at] = label;
            }
            if (outputs[1] != nullptr) {
                std::copy(z, z + targets_, static_cast<float*>(outputs[1]) + at * targets_);
            }
            continue;
        }
        finish_.regress(scores, has, targets_, forest_->trees());
        if (result_ == ElementType::f32) {
            std::transform(scores, scores + targets_, static_cast<float*>(outputs[0]) + at * targets_,
                           [](T value) { return static_cast<float>(value); });
        } else {
            std::copy(scores, scores + targets_, static_cast<double*>(outputs[0]) + at * targets_);
        }
    }
}

// Many rows: each block of rows is traversed tree by tree.
template <typename T>
void TreeEnsemble<T>::rows(const std::byte* x, void* const* outputs, std::int64_t begin, std::int64_t end,
                           const Memory& own) const {
    const bool single = targets_ == 1 && finish_.aggregate <= Aggregate::sum;
    for (const std::int64_t block = this->block(); begin < end; begin += block) {
        const std::int64_t count = std::min(block, end - begin);
        const T* const from = converted(x, begin, count, own.x);
        start(own, count);
        for (std::int64_t tree = 0; tree < forest_->trees(); ++tree) {
            const std::int32_t root = forest_->root(tree);
            const Levels levels = forest_->levels(tree);
            for (std::int64_t row = 0; row < count; row += kLanes) {
                const T* lanes[kLanes];
                std::int32_t at[kLanes];
                for (std::int64_t i = 0; i < kLanes; ++i) {
                    // Lanes beyond the last row repeat it.
                    lanes[i] = from + std::min(row + i, count - 1) * features_;
                    at[i] = root;
                }
                forest_->walk(lanes, at, levels);
                const std::int64_t found = std::min(kLanes, count - row);
                for (std::int64_t i = 0; i < found; ++i) {
                    if (single) {
                        own.scores[row + i] += forest_->weight(at[i]);
                    } else {
                        add(at[i], own.scores + (row + i) * targets_, own.has + (row + i) * targets_);
                    }
                }
            }
        }
        if (single) {
            std::fill(own.has, own.has + count, std::uint8_t{1});
        }
        write(outputs, begin, count, own);
    }
}

// Few rows: each is traversed in several trees at a time. Weights are summed afterwards, in the order of the trees.
template <typename T>
void TreeEnsemble<T>::few(const std::byte* x, void* const* outputs, std::byte* scratch) const {
    const Memory own = memory(scratch + leaves_bytes());
    auto* const leaves = reinterpret_cast<std::int32_t*>(scratch);
    const T* const from = converted(x, 0, rows_, own.x);
    const std::int64_t trees = forest_->trees(), groups = (trees + kLanes - 1) / kLanes;
    const double cost = kStep * forest_->depth() * kLanes + 4;
    parallel_for(threads(), groups * rows_, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t group = i % groups;
            const T* lanes[kLanes];
            std::int32_t* const at = leaves + i * kLanes;
            Levels levels = forest_->levels(group * kLanes);
            for (std::int64_t lane = 0; lane < kLanes; ++lane) {
                const std::int64_t tree = std::min(group * kLanes + lane, trees - 1);
                const Levels here = forest_->levels(tree);
                levels = {std::min(levels.least, here.least), std::max(levels.most, here.most)};
                lanes[lane] = from + i / groups * features_;
                at[lane] = forest_->root(tree);
            }
            forest_->walk(lanes, at, levels);
        }
    });
    start(own, rows_);
    for (std::int64_t row = 0; row < rows_; ++row) {
        for (std::int64_t tree = 0; tree < trees; ++tree) {
            add(leaves[row * groups * kLanes + tree], own.scores + row * targets_, own.has + row * targets_);
        }
    }
    write(outputs, 0, rows_, own);
}

template <typename T>
void TreeEnsemble<T>::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const auto* x = static_cast<const std::byte*>(inputs[0]);
    if (rows_ == 0) {
        return;
    }
    if (is_few()) {
        few(x, outputs, scratch);
        return;
    }
    const double cost = kStep * forest_->depth() * static_cast<double>(forest_->trees()) + 20;
    parallel_for(
        threads(), rows_, cost,
        [&](std::int64_t begin, std::int64_t end) {
            const auto number = static_cast<std::size_t>(thread_number());
            rows(x, outputs, begin, end, memory(scratch + number * thread_bytes()));
        },
        kLanes);
}

template <typename V>
std::vector<V> elements(const RawBytes& bytes) {
    std::vector<V> values(bytes.data.size() / sizeof(V));
    std::memcpy(values.data(), bytes.data.data(), values.size() * sizeof(V));
    return values;
}

// The arrays of ForestArrays in order, whether a feature may be missing, and the number of targets.
using ForestTuple = std::tuple<RawBytes, RawBytes, RawBytes, RawBytes, RawBytes, RawBytes, RawBytes, RawBytes, RawBytes,
                               bool, std::int64_t>;

template <typename T>
ForestArrays<T> arrays_of(const ForestTuple& given) {
    const auto& [limit, feature, yes, no, roots, first, count, target, weight, has_missing, targets] = given;
    return {elements<T>(limit),
            elements<std::int32_t>(feature),
            elements<std::int32_t>(yes),
            elements<std::int32_t>(no),
            elements<std::int32_t>(roots),
            elements<std::int32_t>(first),
            elements<std::int32_t>(count),
            elements<std::int32_t>(target),
            elements<T>(weight)};
}

template <typename T>
void build_ensemble(TreeEnsemble<T>* self, Dims x, Text type, Dims y, Text result,
                    std::shared_ptr<WalkedForest<T>> trees, Text aggregate, Text transform, std::vector<double> base,
                    std::vector<std::int64_t> labels, bool is_binary, bool is_positive, int threads) {
    const std::int64_t targets = y.empty() ? 0 : y.back();
    Finish finish{
        aggregate_of(aggregate), transform_of(transform), std::move(base), std::move(labels), is_binary, is_positive};
    new (self) TreeEnsemble<T>(std::move(x), element_type(type), std::move(y), element_type(result), std::move(trees),
                               targets, std::move(finish), threads);
}

}  // namespace

template <typename T>
struct RecipeCodec<std::shared_ptr<WalkedForest<T>>> {
    static void write(RecipeWriter& to, const std::shared_ptr<WalkedForest<T>>& forest) {
        if (forest->recipe().empty()) {
            throw NativeError("the trees were made while no recipes were recorded");
        }
        to.raw(forest->recipe().data(), forest->recipe().size());
    }
    static std::shared_ptr<WalkedForest<T>> read(RecipeReader& from) {
        const auto given = RecipeCodec<ForestTuple>::read(from);
        return std::make_shared<WalkedForest<T>>(arrays_of<T>(given), std::get<9>(given), std::get<10>(given));
    }
};

namespace {

const RecipeKind ensemble32_recipe("TreeEnsemble32", &build_ensemble<float>);
const RecipeKind ensemble64_recipe("TreeEnsemble64", &build_ensemble<double>);

template <typename T, typename Recipe>
void bind(nb::module_& m, const char* forest, const char* kernel, const Recipe& recipe) {
    nb::class_<WalkedForest<T>>(m, forest).def(
        "__init__",
        [](WalkedForest<T>* self, const RawBytes& limit, const RawBytes& feature, const RawBytes& yes,
           const RawBytes& no, const RawBytes& roots, const RawBytes& first, const RawBytes& count,
           const RawBytes& target, const RawBytes& weight, bool has_missing, std::int64_t targets) {
            const ForestTuple given{limit, feature, yes, no, roots, first, count, target, weight, has_missing, targets};
            new (self) WalkedForest<T>(arrays_of<T>(given), has_missing, targets);
            if (records_recipes()) {
                RecipeWriter writer;
                RecipeCodec<ForestTuple>::write(writer, given);
                self->set_recipe(writer.take());
            }
        },
        nb::kw_only(), "limit"_a, "feature"_a, "yes"_a, "no"_a, "roots"_a, "first"_a, "count"_a, "target"_a, "weight"_a,
        "has_missing"_a, "targets"_a);
    nb::class_<TreeEnsemble<T>, Kernel>(m, kernel).def("__init__", recipe.init(), nb::kw_only(), "x"_a, "type"_a, "y"_a,
                                                       "result"_a, "trees"_a, "aggregate"_a, "transform"_a, "base"_a,
                                                       "labels"_a, "is_binary"_a, "is_positive"_a, "threads"_a);
}

}  // namespace

GRAPHKIT_BINDINGS(trees) {
    bind<float>(m, "Forest32", "TreeEnsemble32", ensemble32_recipe);
    bind<double>(m, "Forest64", "TreeEnsemble64", ensemble64_recipe);
}

}  // namespace graphkit
