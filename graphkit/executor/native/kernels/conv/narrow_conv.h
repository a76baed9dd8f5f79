// Convolutions with few filters.
#pragma once

#include <memory>

#include "kernels/conv/window.h"
#include "kernels/pointwise/epilogue.h"
#include "runtime/kernel.h"

namespace graphkit {

// Whether there are so few filters that `narrow_convolution` is faster than filters in the lanes of vectors.
bool suits_narrow(const Dims& x, const Dims& w, const Dims& y, const Window& window);

// Shapes are given as [N, C, spatial], arrays lie as [N, spatial, C]; w [M, C, kernel] lies as it is.
std::unique_ptr<Kernel> narrow_convolution(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                                           const Epilogue& epilogue, bool pack_weights, int threads);

}  // namespace graphkit
