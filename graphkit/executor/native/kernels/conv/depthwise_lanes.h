// What follows a sum of a depthwise convolution. For *.isa.cpp only.
#pragma once

#include "kernels/conv/depthwise_table.h"
#include "simd/channels.h"

namespace graphkit {
namespace {

// After the bias was added.
inline Lane finished(Lane x, const DepthwiseFinish& finish) {
    if (finish.slope != 1) {
        x = x < Lane{} ? x * splat(finish.slope) : x;
    }
    return at_most<float>(at_least<float>(x, finish.low), finish.high);
}

}  // namespace
}  // namespace graphkit
