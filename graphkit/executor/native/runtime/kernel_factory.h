// Factories that make the kernels of one node for all sizes, without Python.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "runtime/kernel.h"

namespace graphkit {

// The shapes of the operands or the results of a node. An operand that is absent has none.
using Shapes = std::vector<std::optional<Dims>>;

// What does not depend on sizes (types, attributes, which operands are present) is prepared once, by the constructor.
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

// Throws NativeError if an operand is absent that a factory needs.
const Dims& present(const Shapes& shapes, std::size_t position);

}  // namespace graphkit
