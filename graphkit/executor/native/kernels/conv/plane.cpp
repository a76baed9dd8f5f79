#include "kernels/conv/plane.h"

#include <algorithm>

#include "runtime/isa.h"
#include "runtime/threads.h"

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

PlaneConvolution::PlaneConvolution(const char* name, const char* method, const Dims& x, const Dims& w, const Dims& y,
                                   const Window& window, const Epilogue& epilogue, bool pack_weights, int threads)
    : Kernel(name, threads > 0 ? threads : default_threads()),
      method_(method),
      isa_(isa_name()),
      packed_(pack_weights) {
    inputs_ = {{"x", x}, {"w", w}};
    outputs_ = {{"y", y}};
    if (epilogue.alpha != 1 || !ConvPlane::covers(x, w, y, window)) {
        throw Unsupported(describe() + ": not by the method " + method_);
    }
    plane_ = ConvPlane::of(*this, x, w, y, window);
    inputs_.push_back({"bias", {plane_.filters}, ElementType::f32, !epilogue.bias});
    if (epilogue.residual != 0) {
        inputs_.push_back({"residual", y});
    }
    following_ =
        Following(epilogue, plane_.images * plane_.out_height * plane_.out_width, plane_.filters, this->threads());
}

// The weights are preceded by a flag: whether they are sound.
std::size_t PlaneConvolution::weight_bytes() const {
    return kAlignment + aligned(arranged_floats() * sizeof(float));
}

std::size_t PlaneConvolution::copies_bytes() const {
    return static_cast<std::size_t>(std::clamp<std::int64_t>(parts(), 1, threads())) * copy_bytes();
}

// The weights, then a copy of image data for each thread, then the epilogue's memory.
std::size_t PlaneConvolution::scratch_bytes() const {
    return (packed_ ? 0 : weight_bytes()) + copies_bytes() + following_.scratch_bytes();
}

std::size_t PlaneConvolution::packed_bytes(int input) const {
    require_packed(input);
    return weight_bytes();
}

void PlaneConvolution::pack(int input, const void* plain, void* packed) const {
    require_packed(input);
    arrange_behind_flag(plain, static_cast<std::byte*>(packed));
}

void PlaneConvolution::arrange_behind_flag(const void* w, std::byte* to) const {
    const bool sound = arrange(static_cast<const float*>(w), reinterpret_cast<float*>(to + kAlignment));
    *reinterpret_cast<std::uint8_t*>(to) = sound ? 1 : 0;
}

void PlaneConvolution::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const auto* weights = static_cast<const std::byte*>(inputs[1]);
    if (!packed_) {
        arrange_behind_flag(weights, scratch);
        weights = scratch;
        scratch += weight_bytes();
    }
    std::byte* const rest = scratch + copies_bytes();
    const void* residual = inputs_.size() > 3 ? inputs[3] : nullptr;
    const Operands given{static_cast<const float*>(inputs[0]), reinterpret_cast<const float*>(weights + kAlignment),
                         *reinterpret_cast<const std::uint8_t*>(weights) != 0, following_.product(outputs[0], rest),
                         following_.on_the_way(inputs[2], residual)};
    parallel_for(threads(), parts(), part_nanoseconds(), [&](std::int64_t begin, std::int64_t end) {
        std::byte* const copied = scratch + static_cast<std::size_t>(thread_number()) * copy_bytes();
        compute_parts(given, begin, end, reinterpret_cast<float*>(copied));
    });
    following_.pass(given.y, residual, outputs[0], rest);
}

}  // namespace graphkit
