// The random state of a node as an argument of recipes.
#pragma once

#include <tuple>

#include "kernels/random/random.h"
#include "runtime/recipe.h"

namespace graphkit {

template <>
struct RecipeFields<PhiloxSource> {
    static auto of(PhiloxSource& s) { return std::tie(s.seed, s.step, s.stream, s.has_operand); }
};

}  // namespace graphkit
