// From the scores that leaves add up to what the operators return: ops/ml/trees.py says what that is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace graphkit {

enum class Aggregate : std::uint8_t { average, sum, least, most };
enum class ScoreTransform : std::uint8_t { none, softmax, logistic, softmax_zero, probit };

// By the names of the operators' attributes. Throws NativeError for any other.
Aggregate aggregate_of(const std::string& name);
ScoreTransform transform_of(const std::string& name);

// What is done to the scores of a row, one for each target or class.
struct Finish {
    Aggregate aggregate = Aggregate::sum;
    ScoreTransform transform = ScoreTransform::none;
    std::vector<double> base;
    // Of a classifier alone: labels of classes, whether weights are for one class of two, and none of them negative.
    std::vector<std::int64_t> labels;
    bool is_binary = false;
    bool is_positive = false;

    // Scores to results of a regressor, in their place. `has` tells which targets leaves had weights for.
    template <typename T>
    void regress(T* scores, const std::uint8_t* has, std::int64_t targets, std::int64_t trees) const;
    // Scores to results of a classifier, `z`; the label.
    template <typename T>
    std::int64_t classify(T* scores, std::uint8_t* has, std::int64_t classes, float* z) const;
};

}  // namespace graphkit
