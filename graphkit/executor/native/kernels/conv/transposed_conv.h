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

// The same for arrays in the standard layout, [N, C, spatial] in memory, also with groups or three spatial axes: w is
// [C, M / groups, kernel].
bool covers_transposed_planes(const Dims& x, const Dims& w, const Dims& y, const Window& window);
std::unique_ptr<Kernel> transposed_planes(const Dims& x, const Dims& w, const Dims& y, const Window& window, bool bias,
                                          bool pack_weights, int threads);

}  // namespace graphkit
