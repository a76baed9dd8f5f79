// Convolutions with few filters.
#pragma once

#include <memory>

#include "kernels/conv/window.h"
#include "kernels/pointwise/epilogue.h"
#include "runtime/kernel.h"

namespace graphkit {

// Whether there are so few filters that `narrow_convolution` is faster than a kernel with filters in the lanes. With
// `vary`, sizes change: it then replaces slightly faster kernels of the library, because making those takes time.
bool suits_narrow(const Dims& x, const Dims& w, const Dims& y, const Window& window, bool vary);

// Shapes are given as [N, C, spatial]; in memory, arrays are [N, spatial, C]. w is [M, C, kernel] in memory, too.
std::unique_ptr<Kernel> narrow_convolution(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                                           const Epilogue& epilogue, bool pack_weights, int threads);

}  // namespace graphkit
