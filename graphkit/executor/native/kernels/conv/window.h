// The windows of a convolution.
#pragma once

#include "runtime/kernel.h"

namespace graphkit {

// ONNX's attributes, complete: one entry for each spatial dimension; dilation 1 means adjacent elements.
struct Window {
    Dims strides;
    Dims dilations;
    Dims pads_begin;
    Dims pads_end;
    std::int64_t groups = 1;
};

}  // namespace graphkit
