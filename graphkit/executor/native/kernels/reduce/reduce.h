// Reductions over axes.
#pragma once

#include <memory>
#include <string>

#include "runtime/kernel.h"

namespace graphkit {

// Reduce<op>, see reduce.cpp. y: the shape of the result.
std::unique_ptr<Kernel> make_reduce(const std::string& op, const Dims& x, const Dims& axes, const Dims& y,
                                    ElementType type, int threads);

}  // namespace graphkit
