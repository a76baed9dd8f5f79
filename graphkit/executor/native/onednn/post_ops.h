// What follows a product as operations of oneDNN's primitives.
#pragma once

#include <dnnl.hpp>

#include "kernels/pointwise/epilogue.h"

namespace graphkit {

// Of a primitive whose destination holds the residual; the bias is an operand of the product itself. Throws NativeError
// for an activation of an unknown kind.
dnnl::post_ops post_ops_of(const Epilogue& epilogue);

}  // namespace graphkit
