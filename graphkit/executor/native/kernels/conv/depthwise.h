// Convolutions with one filter for each channel.
#pragma once

#include <memory>

#include "kernels/pointwise/epilogue.h"
#include "kernels/pool/pool.h"
#include "runtime/kernel.h"

namespace graphkit {

// Shapes are given as [N, C, spatial]; in memory, arrays are [N, spatial, C]. Throws Unsupported for an epilogue with a
// residual.
std::unique_ptr<Kernel> depthwise_convolution(const Dims& x, const Dims& y, const PoolWindow& window,
                                              const Epilogue& epilogue, bool pack_weights, int threads);

}  // namespace graphkit
