#include "kernels/trees/finish.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/kernel.h"

namespace graphkit {
namespace {

constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();

float logistic(float x) {
    const float y = 1 / (1 + std::exp(-std::abs(x)));
    return x < 0 ? 1 - y : y;
}

// The quantile of the normal distribution, with the approximation of erf given in scores.py.
float probit(float x) {
    constexpr float a = 0.147F;
    const float y = 2 * x - 1;
    const float log = std::log((1 - y) * (1 + y));
    const float v = 2 / (3.14159F * a) + 0.5F * log;
    const float root = std::sqrt(std::sqrt(v * v - log / a) - v);
    return 1.41421356F * (y < 0 ? -root : root);
}

template <typename T>
void softmax(T* x, std::int64_t count, bool skip_zeros) {
    T largest = -std::numeric_limits<T>::infinity();
    for (std::int64_t i = 0; i < count; ++i) {
        largest = x[i] > largest ? x[i] : largest;
    }
    const T factor = std::exp(-largest);
    T sum = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        if (skip_zeros && std::abs(x[i]) <= T(1e-7F)) {
            x[i] *= factor;
        } else {
            x[i] = std::exp(x[i] - largest);
            sum += x[i];
        }
    }
    for (std::int64_t i = 0; i < count; ++i) {
        x[i] /= sum;
    }
}

template <typename T>
void transform_all(ScoreTransform kind, T* x, std::int64_t count) {
    switch (kind) {
        case ScoreTransform::none:
            return;
        case ScoreTransform::softmax:
        case ScoreTransform::softmax_zero:
            return softmax(x, count, kind == ScoreTransform::softmax_zero);
        case ScoreTransform::logistic:
            std::transform(x, x + count, x, [](T v) { return static_cast<T>(logistic(static_cast<float>(v))); });
            return;
        case ScoreTransform::probit:
            std::transform(x, x + count, x, [](T v) { return static_cast<T>(probit(static_cast<float>(v))); });
            return;
    }
}

}  // namespace

Aggregate aggregate_of(const std::string& name) {
    const char* const names[] = {"AVERAGE", "SUM", "MIN", "MAX"};
    for (std::uint8_t i = 0; i < 4; ++i) {
        if (name == names[i]) {
            return static_cast<Aggregate>(i);
        }
    }
    throw NativeError("no aggregate is called " + name);
}

ScoreTransform transform_of(const std::string& name) {
    const char* const names[] = {"NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"};
    for (std::uint8_t i = 0; i < 5; ++i) {
        if (name == names[i]) {
            return static_cast<ScoreTransform>(i);
        }
    }
    throw NativeError("no transformation of scores is called " + name);
}

template <typename T>
void Finish::regress(T* scores, const std::uint8_t* has, std::int64_t targets, std::int64_t trees) const {
    const bool adds = static_cast<std::int64_t>(base.size()) == targets;
    for (std::int64_t k = 0; k < targets; ++k) {
        if (aggregate == Aggregate::average) {
            scores[k] /= static_cast<T>(trees);
        }
        if (adds) {
            scores[k] += static_cast<T>(base[static_cast<std::size_t>(k)]);
        }
        if (targets > 1 && has[k] == 0) {
            scores[k] = 0;
        }
    }
    if (targets > 1 || transform == ScoreTransform::probit) {
        transform_all(transform, scores, targets);
    }
}

template <typename T>
std::int64_t Finish::classify(T* scores, std::uint8_t* has, std::int64_t classes, float* z) const {
    if (classes != 2) {
        for (std::size_t k = 0; k < base.size(); ++k) {
            scores[k] += static_cast<T>(base[k]);
            has[k] = 1;
        }
        std::int64_t best = -1;
        for (std::int64_t k = 0; k < classes; ++k) {
            z[k] = has[k] != 0 || classes == 1 ? static_cast<float>(scores[k]) : 0.0F;
            if (has[k] != 0 && (best < 0 || scores[k] > scores[best])) {
                best = k;
            }
        }
        if (classes > 1 || transform == ScoreTransform::probit) {
            transform_all(transform, z, classes);
        }
        return classes == 1 ? scores[0] > 0 : labels[static_cast<std::size_t>(std::max<std::int64_t>(best, 0))];
    }
    T first = scores[0], second = scores[1];
    const bool knows = has[1] != 0;
    if (base.size() == 2) {
        const T joint = static_cast<T>(base[1]) + first;
        first = knows ? -joint : first + static_cast<T>(base[0]);
        second = knows ? joint : second + static_cast<T>(base[1]);
    } else if (base.size() == 1) {
        first += static_cast<T>(base[0]);
    }
    const bool nonnegative = is_binary && is_positive;
    const T decisive = knows ? second : has[0] != 0 ? first : T(0);
    const bool chosen = decisive > (nonnegative ? T(0.5) : T(0));
    z[0] = has[0] != 0 ? static_cast<float>(first) : 0.0F;
    z[1] = knows ? static_cast<float>(second) : 0.0F;
    if (base.size() == 2 || knows) {
        transform_all(transform, z, 2);
    } else {
        // A single score for two classes. Elements that are NaN here are undefined in ONNX Runtime.
        const float score = z[0];
        if (transform == ScoreTransform::probit) {
            z[0] = probit(score);
            z[1] = kNoNumber;
        } else if (!is_binary && !base.empty()) {
            z[1] = kNoNumber;
        } else if (transform == ScoreTransform::logistic) {
            z[0] = logistic(-score);
            z[1] = logistic(score);
        } else {
            z[0] = nonnegative ? 1 - score : -score;
            z[1] = score;
        }
    }
    return is_binary ? labels[chosen ? 1 : 0] : static_cast<std::int64_t>(chosen);
}

template void Finish::regress<float>(float*, const std::uint8_t*, std::int64_t, std::int64_t) const;
template void Finish::regress<double>(double*, const std::uint8_t*, std::int64_t, std::int64_t) const;
template std::int64_t Finish::classify<float>(float*, std::uint8_t*, std::int64_t, float*) const;
template std::int64_t Finish::classify<double>(double*, std::uint8_t*, std::int64_t, float*) const;

}  // namespace graphkit
