// Convolution with few filters, of channels-last data: float32, one or two spatial dimensions, one group. Results do
// not depend on the number of threads.
#include "kernels/conv/narrow_conv.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/conv/narrow_table.h"
#include "kernels/conv/plane.h"
#include "primitives/rounding.h"
#include "runtime/bindings.h"
#include "runtime/recipe.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

constexpr std::int64_t kMostFilters = 8;
// With shorter runs, most lanes of a vector would be unused.
constexpr std::int64_t kLeastRun = 8;
// With AVX-512, adding the lanes of a sum takes as long as this many products of vectors. The library, whose lanes hold
// filters, takes kLibraryCost as long for a product of vectors, because it waits less often for a sum.
constexpr std::int64_t kLaneSum = 6;
constexpr double kLibraryCost = 0.6;
// Largest part of the results: columns of a line, and floats of the image that it reads.
constexpr std::int64_t kPartColumns = 64;
constexpr std::int64_t kPartFloats = 1 << 15;
constexpr double kVectorNanoseconds = 0.5;

// Shapes are given as [N, C, spatial]; in memory, arrays are [N, spatial, C]. w is [M, C, kernel] in memory, too.
class NarrowConvolution final : public PlaneConvolution {
  public:
    NarrowConvolution(const Dims& x, const Dims& w, const Dims& y, const Window& window, const Epilogue& epilogue,
                      bool pack_weights, int threads);

    // Whether this is faster than a kernel with filters in the lanes.
    static bool suits(const Dims& x, const Dims& w, const Dims& y, const Window& window, bool vary);

    std::string packed_layout(int input) const override;
    std::vector<std::pair<int, int>> inplace() const override;

  private:
    std::int64_t parts() const override { return plane_.images * row_parts_ * column_parts_; }
    double part_nanoseconds() const override;
    std::size_t arranged_floats() const override;
    std::size_t copy_bytes() const override;
    bool arrange(const float* w, float* to) const override;
    void compute_parts(const Operands& given, std::int64_t begin, std::int64_t end, float* copied) const override;

    Part part(std::int64_t number) const;
    // Whether the windows of a part are inside of the image. If not, `copy` copies what they cover, with zeros around
    // it.
    bool inside(const Part& part) const;
    void copy(const Part& part, const float* image, float* to) const;
    // The number of runs of a window: its lines, or its single elements if they are dilated.
    std::int64_t runs() const {
        return plane_.dilations[1] == 1 ? plane_.kernel[0] : plane_.kernel[0] * plane_.kernel[1];
    }
    std::int64_t run_floats() const {
        return plane_.dilations[1] == 1 ? plane_.kernel[1] * plane_.channels : plane_.channels;
    }
    NarrowLine line() const;
    void place_runs(std::int64_t pitch, std::vector<std::int64_t>& offsets) const;
    void compute(const Part& part, NarrowLine line, bool sound, float* copied,
                 std::vector<std::int64_t>& offsets) const;
    float sum_inside(const NarrowLine& line, std::int64_t filter, std::int64_t row, std::int64_t column,
                     const float* image) const;

    const NarrowTable& table_;
    std::int64_t rows_ = 1;  // largest number of rows of a part
    std::int64_t row_parts_ = 0;
    std::int64_t column_parts_ = 0;
};

}  // namespace

bool NarrowConvolution::suits(const Dims& x, const Dims& w, const Dims& y, const Window& window, bool vary) {
    if (!ConvPlane::covers(x, w, y, window) || w[0] > kMostFilters) {
        return false;
    }
    // If windows are dilated or far apart, most copied elements would not be used.
    const std::size_t last = window.dilations.size() - 1;
    const std::int64_t lines = last == 0 ? 1 : (w[2] - 1) * window.dilations[0] + 1;
    const std::int64_t columns =
        (std::min(y.back(), kPartColumns) - 1) * window.strides[last] + (w.back() - 1) * window.dilations[last] + 1;
    const bool apart = *std::max_element(window.dilations.begin(), window.dilations.end()) > 1;
    const std::int64_t run = w[1] * (window.dilations[last] == 1 ? w.back() : 1);
    if ((apart && lines * columns * w[1] > kPartFloats) || run < kLeastRun) {
        return false;
    }
    if (vary || narrow_table().grain < kLongestVector) {
        return true;
    }
    const std::int64_t elements = count(w) / w[0];
    const std::int64_t products = w[0] * (elements / run * divide_up(run, kLongestVector) + kLaneSum);
    return static_cast<double>(products) <= kLibraryCost * static_cast<double>(elements);
}

NarrowConvolution::NarrowConvolution(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                                     const Epilogue& epilogue, bool pack_weights, int threads)
    : PlaneConvolution("NarrowConvolution", "narrow", x, w, y, window, epilogue, pack_weights, threads),
      table_(narrow_table()) {
    const auto put_channels_last = [](Dims& dims) { std::rotate(dims.begin() + 1, dims.begin() + 2, dims.end()); };
    put_channels_last(inputs_[0].shape);
    put_channels_last(outputs_[0].shape);
    if (inputs_.size() > 3) {
        put_channels_last(inputs_[3].shape);
    }
    column_parts_ = divide_up(plane_.out_width, kPartColumns);
    const std::int64_t columns = divide_up(plane_.out_width, std::max<std::int64_t>(column_parts_, 1));
    while (rows_ < plane_.out_height &&
           plane_.span(0, 2 * rows_) * plane_.span(1, columns) * plane_.channels <= kPartFloats) {
        rows_ *= 2;
    }
    row_parts_ = divide_up(plane_.out_height, rows_);
}

NarrowConvolution::Part NarrowConvolution::part(std::int64_t number) const {
    Part p{};
    const std::int64_t column = number % column_parts_;
    const std::int64_t row = number / column_parts_ % row_parts_;
    p.image = number / column_parts_ / row_parts_;
    p.column = plane_.out_width * column / column_parts_;
    p.columns = plane_.out_width * (column + 1) / column_parts_ - p.column;
    p.row = plane_.out_height * row / row_parts_;
    p.rows = plane_.out_height * (row + 1) / row_parts_ - p.row;
    return p;
}

bool NarrowConvolution::inside(const Part& part) const {
    const std::int64_t top = part.row * plane_.strides[0] - plane_.begin[0];
    const std::int64_t left = part.column * plane_.strides[1] - plane_.begin[1];
    return top >= 0 && left >= 0 && top + plane_.span(0, part.rows) <= plane_.height &&
           left + plane_.span(1, part.columns) <= plane_.width;
}

void NarrowConvolution::copy(const Part& part, const float* image, float* to) const {
    const std::int64_t top = part.row * plane_.strides[0] - plane_.begin[0];
    const std::int64_t left = part.column * plane_.strides[1] - plane_.begin[1];
    const std::int64_t columns = plane_.span(1, part.columns);
    const std::int64_t begin = std::clamp<std::int64_t>(-left, 0, columns);
    const std::int64_t end = std::clamp<std::int64_t>(plane_.width - left, begin, columns);
    const std::int64_t channels = plane_.channels;
    for (std::int64_t h = top; h < top + plane_.span(0, part.rows); ++h, to += columns * channels) {
        if (h < 0 || h >= plane_.height) {
            std::fill_n(to, columns * channels, 0.0F);
            continue;
        }
        std::fill_n(to, begin * channels, 0.0F);
        std::copy_n(image + (h * plane_.width + left + begin) * channels, (end - begin) * channels,
                    to + begin * channels);
        std::fill_n(to + end * channels, (columns - end) * channels, 0.0F);
    }
}

std::size_t NarrowConvolution::arranged_floats() const {
    return static_cast<std::size_t>(plane_.filters * runs() * divide_up(run_floats(), table_.grain) * table_.grain);
}

std::size_t NarrowConvolution::copy_bytes() const {
    const std::int64_t columns = divide_up(plane_.out_width, std::max<std::int64_t>(column_parts_, 1));
    const std::int64_t floats = plane_.span(0, rows_) * plane_.span(1, columns) * plane_.channels;
    return plane_.pads() ? aligned(static_cast<std::size_t>(floats) * sizeof(float)) : 0;
}

std::string NarrowConvolution::packed_layout(int input) const {
    require_packed(input);
    return implementation() + (plane_.dilations[1] == 1 ? " joined " : " ") + to_string(inputs_[1].shape);
}

std::vector<std::pair<int, int>> NarrowConvolution::inplace() const {
    return inputs_.size() > 3 ? std::vector<std::pair<int, int>>{{3, 0}} : std::vector<std::pair<int, int>>{};
}

bool NarrowConvolution::arrange(const float* w, float* to) const {
    const std::int64_t taps = plane_.kernel[0] * plane_.kernel[1];
    const bool joined = plane_.dilations[1] == 1;
    const NarrowFilters given{w, plane_.channels, plane_.channels * taps, joined ? plane_.kernel[1] : 1, 1, taps};
    return table_.arrange(given, line(), to);
}

// The fields that all lines share.
NarrowLine NarrowConvolution::line() const {
    NarrowLine made{};
    made.step = plane_.strides[1] * plane_.channels;
    made.runs = runs();
    made.run = run_floats();
    made.filters = plane_.filters;
    return made;
}

// Offsets of the runs of a window, in an image with `pitch` floats in a line.
void NarrowConvolution::place_runs(std::int64_t pitch, std::vector<std::int64_t>& offsets) const {
    const std::int64_t columns = runs() / plane_.kernel[0];
    offsets.clear();
    for (std::int64_t i = 0; i < plane_.kernel[0]; ++i) {
        for (std::int64_t j = 0; j < columns; ++j) {
            offsets.push_back(i * plane_.dilations[0] * pitch + j * plane_.dilations[1] * plane_.channels);
        }
    }
}

// Computes one result for a filter that is not finite: padding must not be multiplied by infinity.
float NarrowConvolution::sum_inside(const NarrowLine& line, std::int64_t filter, std::int64_t row, std::int64_t column,
                                    const float* image) const {
    const std::int64_t joined = runs() == plane_.kernel[0] ? plane_.kernel[1] : 1;  // columns of a run
    float sum = 0;
    for (std::int64_t tap = 0; tap < plane_.kernel[0] * plane_.kernel[1]; ++tap) {
        const std::int64_t i = tap / plane_.kernel[1];
        const std::int64_t j = tap % plane_.kernel[1];
        const std::int64_t h = row * plane_.strides[0] - plane_.begin[0] + i * plane_.dilations[0];
        const std::int64_t v = column * plane_.strides[1] - plane_.begin[1] + j * plane_.dilations[1];
        if (h < 0 || h >= plane_.height || v < 0 || v >= plane_.width) {
            continue;
        }
        const float* from = image + (h * plane_.width + v) * plane_.channels;
        for (std::int64_t c = 0; c < plane_.channels; ++c) {
            sum += from[c] * table_.element(line, filter, tap / joined, tap % joined * plane_.channels + c);
        }
    }
    return sum;
}

// `line` describes the whole result; its `first` is the image of the part.
void NarrowConvolution::compute(const Part& part, NarrowLine line, bool sound, float* copied,
                                std::vector<std::int64_t>& offsets) const {
    const float* image = line.first;
    const bool in_place = inside(part);
    std::int64_t pitch = plane_.width * plane_.channels;
    std::int64_t top = part.row * plane_.strides[0] - plane_.begin[0];
    std::int64_t left = (part.column * plane_.strides[1] - plane_.begin[1]) * plane_.channels;
    if (!in_place && sound) {
        copy(part, image, copied);
        pitch = plane_.span(1, part.columns) * plane_.channels;
        top = left = 0;
    }
    const float* x = in_place || !sound ? image : copied;
    place_runs(pitch, offsets);
    line.offsets = offsets.data();
    line.count = part.columns;
    float* const y = line.y;
    const float* const residual = line.epilogue.residual;
    for (std::int64_t row = 0; row < part.rows; ++row) {
        const std::int64_t at =
            (((part.image * plane_.out_height) + part.row + row) * plane_.out_width + part.column) * plane_.filters;
        line.y = y + at;
        line.epilogue.residual = residual == nullptr ? nullptr : residual + at;
        if (in_place || sound) {
            line.first = x + (top + row * plane_.strides[0]) * pitch + left;
            table_.run(line);
            continue;
        }
        for (std::int64_t i = 0; i < part.columns * plane_.filters; ++i) {
            const std::int64_t filter = i % plane_.filters;
            const std::int64_t column = i / plane_.filters;
            const float sum = sum_inside(line, filter, part.row + row, part.column + column, image);
            const float bias = line.epilogue.bias == nullptr ? 0.0F : line.epilogue.bias[filter];
            table_.finish(line, column, 1, filter, 1, &sum, &bias);
        }
    }
}

double NarrowConvolution::part_nanoseconds() const {
    const std::int64_t vectors = plane_.filters * runs() * divide_up(run_floats(), table_.grain);
    const std::int64_t results = plane_.images * plane_.out_height * plane_.out_width;
    return kVectorNanoseconds * static_cast<double>(vectors) * static_cast<double>(results) /
           static_cast<double>(std::max<std::int64_t>(parts(), 1));
}

void NarrowConvolution::compute_parts(const Operands& given, std::int64_t begin, std::int64_t end,
                                      float* copied) const {
    NarrowLine whole = line();
    whole.w = given.weights;
    whole.y = given.y;
    whole.epilogue = given.epilogue;
    std::vector<std::int64_t> offsets;
    for (std::int64_t at = begin; at < end; ++at) {
        const Part here = part(at);
        NarrowLine line = whole;
        line.first = given.x + here.image * plane_.height * plane_.width * plane_.channels;
        compute(here, line, given.sound, copied, offsets);
    }
}

bool suits_narrow(const Dims& x, const Dims& w, const Dims& y, const Window& window, bool vary) {
    return NarrowConvolution::suits(x, w, y, window, vary);
}

std::unique_ptr<Kernel> narrow_convolution(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                                           const Epilogue& epilogue, bool pack_weights, int threads) {
    return std::make_unique<NarrowConvolution>(x, w, y, window, epilogue, pack_weights, threads);
}

static const RecipeKind narrow_convolution_recipe(
    "NarrowConvolution", +[](NarrowConvolution* self, const Dims& x, const Dims& w, const Dims& y, const Window& window,
                             bool bias, Epilogue last, bool pack_weights, int threads) {
        last.bias = bias;
        new (self) NarrowConvolution(x, w, y, window, last, pack_weights, threads);
    });

GRAPHKIT_BINDINGS(narrow_conv, "conv", "epilogue") {
    nb::class_<NarrowConvolution, Kernel>(m, "NarrowConvolution")
        .def("__init__", narrow_convolution_recipe.init(), "x"_a, "w"_a, "y"_a, "window"_a, nb::kw_only(),
             "bias"_a = false, "epilogue"_a = Epilogue{}, "pack_weights"_a = false, "threads"_a = 0, NoGil())
        .def_static("suits", &NarrowConvolution::suits, "x"_a, "w"_a, "y"_a, "window"_a, "vary"_a = false,
                    "Whether there are so few filters that this is faster than a kernel with filters in the lanes.");
}

}  // namespace graphkit
