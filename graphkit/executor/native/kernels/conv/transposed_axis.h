// The spatial axes of transposed convolutions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernels/conv/window.h"
#include "primitives/rounding.h"

namespace graphkit {
namespace {

// A spatial axis. Tap k of element i is added to position i * stride + k * dilation - begin.
struct Axis {
    std::int64_t size = 1, positions = 1, taps = 1, stride = 1, dilation = 1, begin = 0;

    std::int64_t reach() const { return (taps - 1) * dilation; }
    // Largest number of elements that contribute to a position.
    std::int64_t span() const { return reach() / stride + 1; }
    // The elements that contribute to a position are `first` to `last`, both included.
    std::int64_t first(std::int64_t position) const {
        return std::max<std::int64_t>(0, divide_up(std::max<std::int64_t>(0, position + begin - reach()), stride));
    }
    std::int64_t last(std::int64_t position) const { return std::min(size - 1, (position + begin) / stride); }

    // Returns how many positions are complete when the elements before `there` are known.
    std::int64_t complete(std::int64_t there) const { return there < size ? there * stride - begin : positions; }

    // Calls body(element, tap) for the terms of a position, in increasing order of taps.
    template <typename Body>
    void for_each_term(std::int64_t position, Body&& body) const {
        if (dilation == 1) {
            std::int64_t element = (position + begin) / stride;
            for (std::int64_t tap = (position + begin) % stride; tap < taps && element >= 0; tap += stride, --element) {
                if (element < size) {
                    body(element, tap);
                }
            }
            return;
        }
        for (std::int64_t tap = 0; tap < taps; ++tap) {
            const std::int64_t at = position + begin - tap * dilation;
            if (at >= 0 && at % stride == 0 && at / stride < size) {
                body(at / stride, tap);
            }
        }
    }
};

// Whether shapes and window have the same number of axes, 1 to `most`, and no pads below 0.
inline bool covers_axes(const Dims& x, const Dims& w, const Dims& y, const Window& window, std::size_t most) {
    const std::size_t axes = window.strides.size();
    const auto at_least = [&](const Dims& values, std::int64_t least) {
        return values.size() == axes && std::all_of(values.begin(), values.end(), [&](auto v) { return v >= least; });
    };
    return axes >= 1 && axes <= most && x.size() == axes + 2 && w.size() == axes + 2 && y.size() == axes + 2 &&
           at_least(window.strides, 1) && at_least(window.dilations, 1) && at_least(window.pads_begin, 0) &&
           at_least(window.pads_end, 0);
}

// Returns spatial axis `i` of shapes for which covers_axes holds. Throws NativeError, with the description of `kernel`,
// for sizes that do not match.
inline Axis spatial_axis(const Dims& x, const Dims& w, const Dims& y, const Window& window, std::size_t i,
                         const Kernel& kernel) {
    const Axis axis{x[2 + i], y[2 + i], w[2 + i], window.strides[i], window.dilations[i], window.pads_begin[i]};
    const std::int64_t room = axis.positions + axis.begin + window.pads_end[i] - axis.reach() - 1;
    if (axis.size > 0 && (room < 0 || room / axis.stride + 1 != axis.size)) {
        throw NativeError(kernel.describe() + ": spatial dimension " + std::to_string(i) + " does not fit");
    }
    return axis;
}

// Treats `stride` adjacent positions along the last axis as filters of one position: in memory they are adjacent, like
// filters, and fill lanes that few filters leave empty. Position o reads tap t * stride + r of element (o + begin) /
// stride - t, where r = (o + begin) % stride. Since the number of taps is a multiple of the stride, the layout [taps,
// filters] does not change.
struct Folded {
    std::int64_t together = 1;  // number of positions that are folded into one
    std::int64_t left_out = 0;  // positions before the first

    Folded() = default;
    explicit Folded(Axis& axis) : together(axis.stride), left_out(axis.begin % axis.stride) {
        axis.positions = divide_up(axis.positions + left_out, together);
        axis.begin /= together;
        axis.taps /= together;
        axis.stride = 1;
    }
    // Missing taps would add terms 0 * x, which are NaN if x is not finite.
    static bool covers(const Axis& axis) { return axis.dilation == 1 && axis.taps % axis.stride == 0; }
};

// Whether each position has exactly one term: the products of an element with the taps are then results.
inline bool has_single_terms(const Axis& axis) {
    return axis.taps == axis.stride && axis.dilation == 1 && axis.begin == 0 &&
           axis.positions == axis.size * axis.stride;
}

}  // namespace
}  // namespace graphkit
