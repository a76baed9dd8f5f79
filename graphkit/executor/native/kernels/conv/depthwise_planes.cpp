// Depthwise convolution in the standard layout: float32, two spatial dimensions, windows of 3 x 3, 5 x 5 or 7 x 7 that
// are adjacent. Results do not depend on the number of threads.
#include <algorithm>
#include <cstring>

#include "kernels/conv/depthwise_planes_table.h"
#include "kernels/conv/plane.h"
#include "primitives/rounding.h"
#include "runtime/bindings.h"
#include "runtime/recipe.h"

namespace graphkit {
namespace {

// Largest number of floats of a copy, so that it stays in the first-level cache.
constexpr std::int64_t kCopyFloats = 6 << 10;
constexpr double kProductNanoseconds = 0.02;

// [N, C, height, width] as images of one channel.
Dims as_planes(const Dims& shape) {
    Dims planes = shape;
    if (shape.size() >= 2) {
        planes[0] *= shape[1];
        planes[1] = 1;
    }
    return planes;
}

Dims one_filter(const Dims& w) {
    Dims one = w;
    if (!one.empty()) {
        one[0] = std::min<std::int64_t>(one[0], 1);
    }
    return one;
}

Window one_group(Window window) {
    window.groups = 1;
    return window;
}

// x [N, C, height, width], w [C, 1, kernel, kernel], y [N, C, positions]. Each channel of each image is a plane. Lines
// of a plane are copied with zeros around them, so that all windows are computed in the same way.
class DepthwisePlanes final : public PlaneConvolution {
  public:
    DepthwisePlanes(const Dims& x, const Dims& w, const Dims& y, const Window& window, const Epilogue& epilogue,
                    bool pack_weights, int threads);

    std::string packed_layout(int input) const override;

  private:
    std::int64_t parts() const override { return plane_.images * bands_; }
    double part_nanoseconds() const override;
    std::size_t arranged_floats() const override { return static_cast<std::size_t>(channels_ * taps()); }
    std::size_t copy_bytes() const override;
    bool arrange(const float* w, float* to) const override;
    void compute_parts(const Operands& given, std::int64_t begin, std::int64_t end, float* copied) const override;

    std::int64_t taps() const { return plane_.kernel[0] * plane_.kernel[1]; }
    void copy(const float* plane, std::int64_t row, std::int64_t rows, float* to) const;
    float sum_inside(const float* w, std::int64_t row, std::int64_t column, const float* plane) const;

    const DepthwisePlanesTable& table_;
    std::int64_t channels_ = 0;
    std::int64_t step_ = 0;   // floats of a copied line
    std::int64_t rows_ = 1;   // of a part
    std::int64_t bands_ = 1;  // of a plane
};

}  // namespace

DepthwisePlanes::DepthwisePlanes(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                                 const Epilogue& epilogue, bool pack_weights, int threads)
    : PlaneConvolution("DepthwisePlanes", "planes", as_planes(x), one_filter(w), as_planes(y), one_group(window),
                       epilogue, pack_weights, threads),
      table_(depthwise_planes_table()) {
    inputs_[0].shape = x;
    inputs_[1].shape = w;
    outputs_[0].shape = y;
    const auto is_one = [](std::int64_t value) { return value == 1; };
    const bool adjacent = std::all_of(window.strides.begin(), window.strides.end(), is_one) &&
                          std::all_of(window.dilations.begin(), window.dilations.end(), is_one);
    const std::int64_t kernel = plane_.kernel[0];
    if (x.size() != 4 || !adjacent || kernel != plane_.kernel[1] || (kernel != 3 && kernel != 5 && kernel != 7)) {
        throw Unsupported(describe() + ": not by the method planes");
    }
    channels_ = x[1];
    if (w[0] != channels_ || w[1] != 1 || y[1] != channels_ || x[0] != y[0] || window.groups != channels_) {
        throw NativeError(describe() + ": one filter for each channel is expected");
    }
    inputs_[2].shape = {channels_};
    if (inputs_.size() > 3) {
        inputs_[3].shape = y;
    }
    step_ = round_up(round_up(std::max<std::int64_t>(plane_.out_width, 1), kPlaneColumns) + kernel - 1, kLongestVector);
    const std::int64_t most = std::max<std::int64_t>(kCopyFloats / step_ - (kernel - 1), 4);
    bands_ = std::max<std::int64_t>((plane_.out_height + most - 1) / most, 1);
    rows_ = std::max<std::int64_t>((plane_.out_height + bands_ - 1) / bands_, 1);
    rows_ = std::min(round_up(rows_, 4), std::max<std::int64_t>(plane_.out_height, 1));
    bands_ = (plane_.out_height + rows_ - 1) / rows_;
}

double DepthwisePlanes::part_nanoseconds() const {
    return kProductNanoseconds * static_cast<double>(rows_ * plane_.out_width * taps());
}

std::size_t DepthwisePlanes::copy_bytes() const {
    return aligned(static_cast<std::size_t>((rows_ + plane_.kernel[0] - 1) * step_) * sizeof(float));
}

std::string DepthwisePlanes::packed_layout(int input) const {
    require_packed(input);
    return implementation() + (plane_.pads() ? " watched " : " ") + to_string(inputs_[1].shape);
}

// Without padding, weights need not be finite.
bool DepthwisePlanes::arrange(const float* w, float* to) const {
    const std::int64_t floats = channels_ * taps();
    std::copy_n(w, floats, to);
    float watch = 0;
    for (std::int64_t i = 0; i < floats && plane_.pads(); ++i) {
        watch += w[i] * 0.0F;
    }
    return watch == 0;
}

void DepthwisePlanes::copy(const float* plane, std::int64_t row, std::int64_t rows, float* to) const {
    const std::int64_t top = row - plane_.begin[0];
    const std::int64_t end = top + rows + plane_.kernel[0] - 1;
    const std::int64_t first = std::clamp<std::int64_t>(top, 0, plane_.height);
    const std::int64_t last = std::clamp<std::int64_t>(end, first, plane_.height);
    const std::int64_t above = std::min(first, end) - top;
    const std::int64_t lines = last - first;
    table_.copy({plane + first * plane_.width, plane_.width, plane_.begin[1], above, lines, end - top - above - lines,
                 to, step_});
}

// Computes one result for filters that are not finite: padding must not be multiplied by infinity.
float DepthwisePlanes::sum_inside(const float* w, std::int64_t row, std::int64_t column, const float* plane) const {
    float sum = 0;
    for (std::int64_t e = 0; e < taps(); ++e) {
        const std::int64_t h = row - plane_.begin[0] + e / plane_.kernel[1];
        const std::int64_t v = column - plane_.begin[1] + e % plane_.kernel[1];
        if (h >= 0 && h < plane_.height && v >= 0 && v < plane_.width) {
            sum += plane[h * plane_.width + v] * w[e];
        }
    }
    return sum;
}

void DepthwisePlanes::compute_parts(const Operands& given, std::int64_t begin, std::int64_t end, float* copied) const {
    for (std::int64_t at = begin; at < end; ++at) {
        const std::int64_t image = at / bands_;
        const std::int64_t channel = image % channels_;
        const std::int64_t row = at % bands_ * rows_;
        const std::int64_t rows = std::min(rows_, plane_.out_height - row);
        const std::int64_t place = (image * plane_.out_height + row) * plane_.out_width;
        const float* const plane = given.x + image * plane_.height * plane_.width;
        PlaneBand band{copied,
                       step_,
                       given.weights + channel * taps(),
                       plane_.kernel[0],
                       rows,
                       plane_.out_width,
                       0,
                       given.epilogue,
                       given.y + place};
        band.bias = given.epilogue.bias == nullptr ? 0.0F : given.epilogue.bias[channel];
        if (given.epilogue.residual != nullptr) {
            band.epilogue.residual = given.epilogue.residual + place;
        }
        if (given.sound) {
            copy(plane, row, rows, copied);
            table_.run(band);
            continue;
        }
        for (std::int64_t i = 0; i < rows * plane_.out_width; ++i) {
            band.y[i] = sum_inside(band.w, row + i / plane_.out_width, i % plane_.out_width, plane);
        }
        table_.finish(band);
    }
}

std::unique_ptr<Kernel> depthwise_planes(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                                         const Epilogue& epilogue, bool pack_weights, int threads) {
    return std::make_unique<DepthwisePlanes>(x, w, y, window, epilogue, pack_weights, threads);
}

static const RecipeKind depthwise_planes_recipe(
    "DepthwisePlanes", +[](DepthwisePlanes* self, const Dims& x, const Dims& w, const Dims& y, const Window& window,
                           bool bias, Epilogue last, bool pack_weights, int threads) {
        last.bias = bias;
        new (self) DepthwisePlanes(x, w, y, window, last, pack_weights, threads);
    });

GRAPHKIT_BINDINGS(depthwise_planes, "conv", "epilogue") {
    nb::class_<DepthwisePlanes, Kernel>(m, "DepthwisePlanes")
        .def("__init__", depthwise_planes_recipe.init(), "x"_a, "w"_a, "y"_a, "window"_a, nb::kw_only(),
             "bias"_a = false, "epilogue"_a = Epilogue{}, "pack_weights"_a = false, "threads"_a = 0, NoGil());
}

}  // namespace graphkit
