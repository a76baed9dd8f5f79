// A convolution of one group over one or two spatial dimensions, as one over two.
#pragma once

#include "kernels/conv/window.h"
#include "runtime/kernel.h"

namespace graphkit {

// With one spatial dimension, the first has one element.
struct ConvPlane {
    std::int64_t images, height, width, channels, out_height, out_width, filters;
    std::int64_t kernel[2], strides[2], dilations[2], begin[2], end[2];

    // Elements along an axis that so many windows side by side lie on.
    std::int64_t span(int axis, std::int64_t windows) const {
        return (windows - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1;
    }
    bool pads() const { return begin[0] + begin[1] + end[0] + end[1] > 0; }

    // Whether `of` takes these shapes, [N, C, spatial] and [M, C, kernel], if they fit together.
    static bool covers(const Dims& x, const Dims& w, const Dims& y, const Window& window);
    // Throws NativeError, which describes the kernel, for shapes that do not fit together.
    static ConvPlane of(const Kernel& kernel, const Dims& x, const Dims& w, const Dims& y, const Window& window);
};

}  // namespace graphkit
