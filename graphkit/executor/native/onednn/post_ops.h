// The epilogue of a product, as post-operations of oneDNN's primitives.
#pragma once

#include "onednn/library.h"

#include "kernels/pointwise/epilogue.h"

namespace graphkit {

// For a primitive whose destination contains the residual; the bias is an operand of the primitive. Throws NativeError
// for an unknown kind of activation.
dnnl::post_ops post_ops_of(const Epilogue& epilogue);

}  // namespace graphkit
