#include "kernels/conv/plane.h"

#include <algorithm>

namespace graphkit {

bool ConvPlane::covers(const Dims& x, const Dims& w, const Dims& y, const Window& window) {
    const std::size_t axes = window.strides.size();
    const auto at_least = [&](const Dims& values, std::int64_t least) {
        return values.size() == axes && std::all_of(values.begin(), values.end(), [&](auto v) { return v >= least; });
    };
    return axes >= 1 && axes <= 2 && x.size() == axes + 2 && w.size() == axes + 2 && y.size() == axes + 2 &&
           count(w) != 0 && window.groups == 1 && at_least(window.strides, 1) && at_least(window.dilations, 1) &&
           at_least(window.pads_begin, 0) && at_least(window.pads_end, 0);
}

ConvPlane ConvPlane::of(const Kernel& kernel, const Dims& x, const Dims& w, const Dims& y, const Window& window) {
    ConvPlane plane{x[0], 1, 1, x[1], 1, 1, w[0], {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}};
    const std::size_t axes = window.strides.size();
    for (std::size_t i = 0; i < axes; ++i) {
        const std::size_t axis = 2 - axes + i;
        (axis == 0 ? plane.height : plane.width) = x[2 + i];
        (axis == 0 ? plane.out_height : plane.out_width) = y[2 + i];
        plane.kernel[axis] = w[2 + i];
        plane.strides[axis] = window.strides[i];
        plane.dilations[axis] = window.dilations[i];
        plane.begin[axis] = window.pads_begin[i];
        plane.end[axis] = window.pads_end[i];
        const std::int64_t room =
            x[2 + i] + window.pads_begin[i] + window.pads_end[i] - plane.span(static_cast<int>(axis), 1);
        if ((room < 0 ? 0 : room / window.strides[i] + 1) != y[2 + i]) {
            throw NativeError(kernel.describe() + ": spatial dimension " + std::to_string(i) + " does not fit");
        }
    }
    if (x[0] != y[0] || x[1] != w[1] || y[1] != w[0]) {
        throw NativeError(kernel.describe() + ": batch or channels do not fit");
    }
    return plane;
}

}  // namespace graphkit
