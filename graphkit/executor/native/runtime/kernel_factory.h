// Factories that make the kernels of one node for all sizes, without Python.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/kernel.h"

namespace graphkit {

// The shapes of a node's operands or results; no value for an absent operand.
using Shapes = std::vector<std::optional<Dims>>;

// The constructor prepares, once, what does not depend on sizes: types, attributes, which operands are present.
class KernelFactory {
  public:
    KernelFactory() = default;
    virtual ~KernelFactory() = default;
    KernelFactory(const KernelFactory&) = delete;
    KernelFactory& operator=(const KernelFactory&) = delete;

    // Returns null if there is no kernel for these shapes. Throws Unsupported and NativeError as constructors of
    // kernels do.
    virtual std::unique_ptr<Kernel> make(const Shapes& inputs, const Shapes& outputs) const = 0;

    // The same for kernels that take milliseconds to make. Called if `make` returns null; without the GIL, if Python
    // waits for it.
    virtual std::unique_ptr<Kernel> make_slowly(const Shapes& /*inputs*/, const Shapes& /*outputs*/) const {
        return nullptr;
    }

    // How the factory was made, see recipe.h; null if that is not known.
    const std::string* recipe() const { return recipe_.get(); }
    void set_recipe(std::string recipe) { recipe_ = std::make_unique<const std::string>(std::move(recipe)); }

  private:
    std::unique_ptr<const std::string> recipe_;
};

// Returns the shape at this position. Throws NativeError if the operand is absent.
const Dims& present(const Shapes& shapes, std::size_t position);

}  // namespace graphkit
