// The epilogue of a matrix product or a convolution: operations on its result before it is stored.
#pragma once

#include <limits>
#include <optional>
#include <string>

#include "kernels/pointwise/pointwise.h"
#include "runtime/recipe.h"

namespace graphkit {

// An elementwise function of a result: kind (relu, tanh, sigmoid, gelu, gelu_tanh, swish, hard_swish, hard_sigmoid,
// elu, clip, softplus, abs, sqrt, exp, square, linear) and its alpha and beta, as oneDNN defines them.
struct Activation {
    std::string kind;
    float alpha = 0;
    float beta = 0;
};

// An activation as graphkit's own kernels apply it: multiplies negative values by `slope`, then clamps to [low, high].
// NaN stays NaN.
struct Limits {
    float slope = 1;
    float low = -std::numeric_limits<float>::infinity();
    float high = std::numeric_limits<float>::infinity();
};

// Returns an activation (or none) as limits; no value if it cannot be expressed like that.
std::optional<Limits> limits_of(const std::optional<Activation>& activation);

// How an epilogue is applied.
enum class Applied {
    fused,   // by the library, with the product, if it has such an implementation; else as `after`
    after,   // by graphkit's own code, in a pass after the product
    active,  // as `after`, but the library adds the bias of a convolution
    repair,  // as `after`, on the result of a fused one that overwrote a finite residual and may have lost NaN
};

// y = activation(alpha * product + bias + residual * r), or with `residual_last`
// y = activation(alpha * product + bias) + residual * r, where r is an operand of y's shape.
struct Epilogue {
    float alpha = 1;
    bool bias = false;
    float residual = 0;  // 0: there is no residual
    bool residual_last = false;
    std::optional<Activation> activation;
    Applied applied = Applied::fused;

    // Returns this epilogue, as `active` if that is faster for a float32 result with `count` elements.
    Epilogue for_results(std::int64_t count) const;

    bool empty() const { return alpha == 1 && !bias && residual == 0 && !activation; }
    // Returns the epilogue as a pass of graphkit's own code, for a result that is row-major as [outer, channels,
    // inner]. Its inputs are the product (of type `product`), the bias [channels], and r (of `type`). y may share the
    // memory of the product or of r. Throws NativeError for an unknown kind of activation.
    PointwiseSource pass(const Dims& shape, ElementType product, ElementType type) const;
};

template <>
struct RecipeLast<Applied> {
    static constexpr auto value = Applied::repair;
};
template <>
struct RecipeFields<Activation> {
    static auto of(Activation& a) { return std::tie(a.kind, a.alpha, a.beta); }
};
template <>
struct RecipeFields<Epilogue> {
    static auto of(Epilogue& e) {
        return std::tie(e.alpha, e.bias, e.residual, e.residual_last, e.activation, e.applied);
    }
    static void check(const Epilogue& e) {
        Epilogue pass = e;
        pass.bias = e.bias && e.applied != Applied::active;
        if (e.applied != Applied::fused && (pass.empty() || (e.applied == Applied::repair && e.residual == 0))) {
            throw BadRecipe("the pass of an epilogue after the product computes nothing");
        }
    }
};

}  // namespace graphkit
