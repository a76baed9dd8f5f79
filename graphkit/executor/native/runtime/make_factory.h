// Makes factories of kernels from recipes.
#pragma once

#include <memory>
#include <string_view>

#include "runtime/kernel_factory.h"

namespace graphkit {

// Returns the factory of a recipe. Throws as make_kernel of recipe.h does.
std::unique_ptr<KernelFactory> make_factory(std::string_view recipe);

}  // namespace graphkit
