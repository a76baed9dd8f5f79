// Makes factories of kernels from recipes.
#pragma once

#include <memory>
#include <string_view>

#include "runtime/kernel_factory.h"

namespace graphkit {

// Returns the factory of a recipe. Throws as make_kernel of recipe.h does.
std::unique_ptr<KernelFactory> make_factory(std::string_view recipe);

// Returns the kernel that a factory of a file makes; null if it has none for these shapes. Throws BadRecipe if a shape
// or the number of threads is out of range.
std::unique_ptr<Kernel> make_checked_kernel(const KernelFactory& factory, const Shapes& inputs, const Shapes& outputs);

}  // namespace graphkit
