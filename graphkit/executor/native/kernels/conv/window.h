// How the windows of a convolution lie.
#pragma once

#include "runtime/kernel.h"

namespace graphkit {

// ONNX's attributes, complete: one entry for each spatial dimension, dilation 1 for neighbours.
struct Window {
    Dims strides;
    Dims dilations;
    Dims pads_begin;
    Dims pads_end;
    std::int64_t groups = 1;
};

}  // namespace graphkit
