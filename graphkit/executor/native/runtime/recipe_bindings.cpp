// Kernels made from recipes, for tests.
#include "runtime/recipe.h"

#include <nanobind/stl/unique_ptr.h>

#include "runtime/bindings.h"

namespace graphkit {

GRAPHKIT_BINDINGS(recipe) {
    m.def("recipe_names", &recipe_names, "Return the names of the kinds of kernels and factories that have recipes.");
    m.def(
        "make_kernel", [](const RawBytes& recipe) { return make_kernel(recipe.data); }, "recipe"_a,
        "Return the kernel of a recipe. Raises Error if the recipe is damaged, or asks for what cannot be.");
}

}  // namespace graphkit
