// Transposed convolutions as scattered products.
#pragma once

#include <memory>

#include "kernels/conv/window.h"
#include "runtime/kernel.h"

namespace graphkit {

// Whether `transposed_convolution` computes such a transposed convolution.
bool covers_transposed(const Dims& x, const Dims& w, const Dims& y, const Window& window);

// Shapes are given as [N, C, spatial]; in memory, arrays are [N, spatial, C]. w is [C, M, kernel] in memory, too.
std::unique_ptr<Kernel> transposed_convolution(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                                               bool bias, bool pack_weights, int threads);

}  // namespace graphkit
