// Factories that make the kernels of one node for all sizes, without Python.
#pragma once

#include <memory>
#include <optional>
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
};

// Returns the shape at this position. Throws NativeError if the operand is absent.
const Dims& present(const Shapes& shapes, std::size_t position);

}  // namespace graphkit
