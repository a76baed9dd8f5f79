// Converts the sums of leaf weights to the results of the operators; ops/ml/trees.py defines them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace graphkit {

enum class Aggregate : std::uint8_t { average, sum, least, most };
enum class ScoreTransform : std::uint8_t { none, softmax, logistic, softmax_zero, probit };

// Convert the names of the operators' attributes. Throw NativeError for any other name.
Aggregate aggregate_of(const std::string& name);
ScoreTransform transform_of(const std::string& name);

// The conversion of a row's scores; there is one score for each target or class.
struct Finish {
    Aggregate aggregate = Aggregate::sum;
    ScoreTransform transform = ScoreTransform::none;
    std::vector<double> base;
    // For classifiers only: the labels of the classes, whether the weights are for one class of two, and whether no
    // weight is negative.
    std::vector<std::int64_t> labels;
    bool is_binary = false;
    bool is_positive = false;

    // Converts scores to results of a regressor, in place. `has`: which targets received a weight from a leaf.
    template <typename T>
    void regress(T* scores, const std::uint8_t* has, std::int64_t targets, std::int64_t trees) const;
    // Converts scores to results of a classifier, `z`. Returns the label.
    template <typename T>
    std::int64_t classify(T* scores, std::uint8_t* has, std::int64_t classes, float* z) const;
};

}  // namespace graphkit
