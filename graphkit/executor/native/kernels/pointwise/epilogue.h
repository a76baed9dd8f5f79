// What follows a product of matrices or a convolution before the result is stored.
#pragma once

#include <limits>
#include <optional>
#include <string>

#include "kernels/pointwise/pointwise.h"

namespace graphkit {

// An elementwise function of a result: kind (relu, tanh, sigmoid, gelu, gelu_tanh, swish, hard_swish, hard_sigmoid,
// elu, clip, softplus, abs, sqrt, exp, square, linear) and its alpha and beta, as oneDNN defines them.
struct Activation {
    std::string kind;
    float alpha = 0;
    float beta = 0;
};

// The activations of own kernels: negative x times `slope`, then from `low` to `high`. NaN stays.
struct Limits {
    float slope = 1;
    float low = -std::numeric_limits<float>::infinity();
    float high = std::numeric_limits<float>::infinity();
};

// An activation, or none, as limits; nothing for one that is something else.
std::optional<Limits> limits_of(const std::optional<Activation>& activation);

// Who applies an epilogue.
enum class Applied {
    fused,   // the library, on the way, where it has an implementation that does it; else as `after`
    after,   // graphkit's own code, in a pass behind the product
    active,  // as `after`, but that a convolution of the library adds the bias on the way
    repair,  // as `after`, where a fused one took the residual's place and may have lost NaN; the residual was finite
};

// y = activation(alpha * product + bias + residual * r), or with `residual_last`
// y = activation(alpha * product + bias) + residual * r, where r is an operand of y's shape.
struct Epilogue {
    float alpha = 1;
    bool bias = false;
    float residual = 0;  // 0: there is none
    bool residual_last = false;
    std::optional<Activation> activation;
    Applied applied = Applied::fused;

    // The same, but `active` where that is faster for a float32 result of so many elements.
    Epilogue for_results(std::int64_t count) const;

    bool empty() const { return alpha == 1 && !bias && residual == 0 && !activation; }
    // As own code, for a result that lies row-major as [outer, channels, inner]: a kernel of the inputs product (of
    // type `product`), bias [channels] and r (of `type`), where y may be the memory of the product or of r. Throws
    // NativeError for an activation of an unknown kind.
    PointwiseSource pass(const Dims& shape, ElementType product, ElementType type) const;
};

}  // namespace graphkit
