// Convolution of images with few channels, in the standard layout: float32, one or two spatial dimensions. Each group
// of channels of an image is computed like an image. Results do not depend on the number of threads.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/conv/plane.h"
#include "kernels/conv/shallow_table.h"
#include "primitives/narrow.h"
#include "primitives/rounding.h"
#include "primitives/strided_copy.h"
#include "runtime/bindings.h"
#include "runtime/recipe.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// Largest part of the results: columns of a line and, if it has several lines, floats of the image that it reads.
constexpr std::int64_t kShallowColumns = 512;
constexpr std::int64_t kShallowFloats = 1 << 16;
// Least columns of a part.
constexpr std::int64_t kLeastColumns = 64;
// Largest number of floats of joined lines, if a part has several of them.
constexpr std::int64_t kJoinedFloats = 3 << 13;
constexpr double kProductNanoseconds = 0.02;

// The shape [N, groups * C, spatial] as [N * groups, C, spatial]. Both are the same in memory.
Dims by_group(const Dims& shape, std::int64_t groups) {
    Dims split = shape;
    if (groups > 1 && shape.size() >= 2) {
        split[0] *= groups;
        split[1] /= groups;
    }
    return split;
}

// The shape of the filters of one group.
Dims filters_of_group(const Dims& w, std::int64_t groups) {
    Dims one = w;
    if (groups > 1 && !w.empty()) {
        one[0] /= groups;
    }
    return one;
}

Window one_group(Window window) {
    window.groups = 1;
    return window;
}

// The layout of copied lines. A line with its padding is split into phases: the elements 0, stride, 2 * stride, ...,
// then the elements 1, stride + 1, ... Adjacent windows then read adjacent elements.
struct PhaseLayout {
    std::int64_t phases;  // number of phases of a line: those that windows read, or all if that takes less time
    std::int64_t filled;  // used elements of a phase
    std::int64_t floats;  // from phase to phase

    PhaseLayout(const ConvPlane& plane, std::int64_t columns) {
        const std::int64_t stride = plane.strides[1];
        phases = plane.dilations[1] == 1 && stride > kNarrow ? std::min(stride, plane.kernel[1]) : stride;
        filled = (plane.kernel[1] - 1) * plane.dilations[1] / stride + columns;
        // Whole vectors are read. The size is not a power of two, because phases would then share one set of the cache.
        floats = round_up(filled + kLongestVector, kLongestVector) + kLongestVector;
    }
    std::int64_t line() const { return phases * floats; }
};

// The layouts of x [N, C, spatial], w [M, C, kernel], y [N, M, spatial] and the residual are not changed. Partial sums
// are written to y before the residual is read, so y must not share the residual's memory.
class ShallowConvolution final : public PlaneConvolution {
  public:
    ShallowConvolution(const Dims& x, const Dims& w, const Dims& y, const Window& window, const Epilogue& epilogue,
                       bool pack_weights, int threads);

    std::string packed_layout(int input) const override;

  private:
    std::int64_t parts() const override { return plane_.images * row_parts_ * column_parts_; }
    double part_nanoseconds() const override;
    std::size_t arranged_floats() const override {
        return static_cast<std::size_t>(groups_ * plane_.filters * elements());
    }
    std::size_t copy_bytes() const override;
    bool arrange(const float* w, float* to) const override;
    void compute_parts(const Operands& given, std::int64_t begin, std::int64_t end, float* copied) const override;

    Part part(std::int64_t number) const;
    // With fewer parts, threads would be idle.
    std::int64_t wanted_parts() const { return threads() > 1 ? kChunksPerThread * threads() : 1; }
    void choose_rows();
    std::int64_t fewest_vectors(std::int64_t rows) const;
    // Floats from element to element of joined lines.
    std::int64_t joined_step() const { return round_up(columns_ * rows_, kLongestVector) + kLongestVector; }
    std::int64_t elements() const { return plane_.channels * plane_.kernel[0] * plane_.kernel[1]; }
    void place_elements();
    float weight(const float* arranged, std::int64_t filter, std::int64_t element) const;
    void copy_line(const float* from, std::int64_t left, float* to) const;
    void copy(const Part& part, const float* image, float* to) const;
    void compute(const Part& part, ShallowLine line, bool sound, float* copied) const;
    float sum_inside(const float* arranged, std::int64_t filter, std::int64_t row, std::int64_t column,
                     const float* image) const;

    const ShallowTable& table_;
    TransposeTable::Tile transpose_;
    std::int64_t groups_ = 1;
    std::int64_t columns_ = 1;  // largest number of columns of a part
    std::int64_t rows_ = 1;
    bool joins_ = false;  // lines that would not fill vectors are joined
    std::int64_t row_parts_ = 0;
    std::int64_t column_parts_ = 0;
    std::vector<std::int64_t> offsets_;  // of each element of a window, in a copy
    std::vector<std::int64_t> joined_offsets_;
};

}  // namespace

ShallowConvolution::ShallowConvolution(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                                       const Epilogue& epilogue, bool pack_weights, int threads)
    : PlaneConvolution("ShallowConvolution", "shallow", by_group(x, window.groups), filters_of_group(w, window.groups),
                       by_group(y, window.groups), one_group(window), epilogue, pack_weights, threads),
      table_(shallow_table()),
      transpose_(transpose_table().tile[2]),
      groups_(window.groups) {
    inputs_[0].shape = x;
    inputs_[1].shape = w;
    outputs_[0].shape = y;
    if (groups_ < 1) {
        throw Unsupported(describe() + ": not by the method shallow");
    }
    if (x[1] != groups_ * plane_.channels || w[0] != groups_ * plane_.filters || y[1] != w[0] || x[0] != y[0]) {
        throw NativeError(describe() + ": batch or channels do not fit");
    }
    inputs_[2].shape = {w[0]};
    if (inputs_.size() > 3) {
        inputs_[3].shape = y;
    }
    const std::int64_t lines = plane_.images * plane_.out_height;
    const std::int64_t share =
        round_up((lines * plane_.out_width + wanted_parts() - 1) / wanted_parts(), kLeastColumns);
    columns_ = std::clamp<std::int64_t>(std::min(share, plane_.out_width), 1, kShallowColumns);
    column_parts_ = (plane_.out_width + columns_ - 1) / columns_;
    choose_rows();
    row_parts_ = (plane_.out_height + rows_ - 1) / rows_;
    place_elements();
}

// Returns the vectors of windows of an image, if `rows` lines at a time are joined.
std::int64_t ShallowConvolution::fewest_vectors(std::int64_t rows) const {
    const auto vectors = [&](std::int64_t lines) {
        return (lines * plane_.out_width + kLongestVector - 1) / kLongestVector;
    };
    return plane_.out_height / rows * vectors(rows) + vectors(plane_.out_height % rows);
}

void ShallowConvolution::choose_rows() {
    const std::int64_t line = PhaseLayout(plane_, columns_).line() * plane_.channels;
    const std::int64_t apart = fewest_vectors(1);
    const auto fits = [&](std::int64_t rows) {
        const std::int64_t found = plane_.images * (plane_.out_height / rows) * column_parts_;
        return rows <= plane_.out_height && found >= wanted_parts() && plane_.span(0, rows) * line <= kShallowFloats;
    };
    std::int64_t together = 1;
    for (std::int64_t rows = 2; column_parts_ == 1 && rows * plane_.out_width <= kShallowColumns && fits(rows) &&
                                rows * plane_.out_width * elements() <= kJoinedFloats;
         ++rows) {
        together = fewest_vectors(rows) <= fewest_vectors(together) ? rows : together;
    }
    // Joining a vector of windows takes as long as multiplying it by some filters. With one channel, lines that are not
    // joined skip elements in the padding; for windows longer than a chain, joining would divide the sums differently.
    const bool same_chains = plane_.channels > 1 || elements() <= kShallowChain;
    joins_ = same_chains && plane_.filters * (apart - fewest_vectors(together)) > 6 * apart;
    if (joins_) {
        rows_ = together;
        return;
    }
    while (rows_ < plane_.out_height && fits(2 * rows_)) {
        rows_ *= 2;
    }
}

void ShallowConvolution::place_elements() {
    const PhaseLayout layout(plane_, columns_);
    for (std::int64_t c = 0; c < plane_.channels; ++c) {
        for (std::int64_t i = 0; i < plane_.kernel[0]; ++i) {
            const std::int64_t line = c * plane_.span(0, rows_) + i * plane_.dilations[0];
            for (std::int64_t j = 0; j < plane_.kernel[1]; ++j) {
                const std::int64_t at = j * plane_.dilations[1];
                joined_offsets_.push_back(static_cast<std::int64_t>(joined_offsets_.size()) * joined_step());
                offsets_.push_back(line * layout.line() + at % plane_.strides[1] * layout.floats +
                                   at / plane_.strides[1]);
            }
        }
    }
}

ShallowConvolution::Part ShallowConvolution::part(std::int64_t number) const {
    Part p{};
    p.column = number % column_parts_ * columns_;
    p.columns = std::min(columns_, plane_.out_width - p.column);
    p.row = number / column_parts_ % row_parts_ * rows_;
    p.rows = std::min(rows_, plane_.out_height - p.row);
    p.image = number / column_parts_ / row_parts_;
    return p;
}

// Copies a line of the image to its phases, from element `left` on, which may be in the padding.
void ShallowConvolution::copy_line(const float* from, std::int64_t left, float* to) const {
    constexpr std::int64_t kSize = sizeof(float);
    const PhaseLayout layout(plane_, columns_);
    const std::int64_t stride = plane_.strides[1];
    // The strides that are entirely inside of the image.
    const std::int64_t begin = std::clamp<std::int64_t>(left < 0 ? (stride - 1 - left) / stride : 0, 0, layout.filled);
    const std::int64_t end =
        std::clamp<std::int64_t>(left < plane_.width ? (plane_.width - left) / stride : 0, begin, layout.filled);
    // Whole vectors are read. Numbers left there by other kernels could be subnormal, which makes products slow.
    table_.clear(to, layout.line());
    const float* const first = from + left + begin * stride;
    if (begin < end && stride <= kNarrow) {
        table_.separate({first, stride, end - begin, to + begin, layout.floats});
    } else if (begin < end) {
        transpose_(reinterpret_cast<const std::byte*>(first), reinterpret_cast<std::byte*>(to + begin), stride * kSize,
                   layout.floats * kSize, layout.phases, end - begin, false);
    }
    // The strides that are partly inside of the image.
    for (const std::int64_t i : {begin - 1, end}) {
        for (std::int64_t phase = 0; phase < layout.phases && i >= 0 && i < layout.filled; ++phase) {
            const std::int64_t at = left + i * stride + phase;
            to[phase * layout.floats + i] = at >= 0 && at < plane_.width ? from[at] : 0.0F;
        }
    }
}

void ShallowConvolution::copy(const Part& part, const float* image, float* to) const {
    const PhaseLayout layout(plane_, columns_);
    const std::int64_t top = part.row * plane_.strides[0] - plane_.begin[0];
    const std::int64_t left = part.column * plane_.strides[1] - plane_.begin[1];
    for (std::int64_t c = 0; c < plane_.channels; ++c) {
        float* place = to + c * plane_.span(0, rows_) * layout.line();
        for (std::int64_t h = top; h < top + plane_.span(0, part.rows); ++h, place += layout.line()) {
            if (h < 0 || h >= plane_.height) {
                table_.clear(place, layout.line());
            } else {
                copy_line(image + (c * plane_.height + h) * plane_.width, left, place);
            }
        }
    }
}

std::size_t ShallowConvolution::copy_bytes() const {
    const PhaseLayout layout(plane_, columns_);
    const std::int64_t lines = plane_.channels * plane_.span(0, rows_);
    const std::int64_t joined = joins_ ? elements() * joined_step() : 0;
    return aligned(static_cast<std::size_t>(lines * layout.line() + joined) * sizeof(float));
}

std::string ShallowConvolution::packed_layout(int input) const {
    require_packed(input);
    return implementation() + (plane_.pads() ? " watched " : " ") + to_string(inputs_[1].shape) +
           (groups_ > 1 ? " groups " + std::to_string(groups_) : "");
}

// Without padding, weights need not be finite.
bool ShallowConvolution::arrange(const float* w, float* to) const {
    constexpr std::int64_t kSize = sizeof(float);
    float watch = 0;
    for (std::int64_t i = 0; i < groups_ * plane_.filters * elements() && plane_.pads(); ++i) {
        watch += w[i] * 0.0F;
    }
    for (std::int64_t group = 0; group < groups_; ++group, w += plane_.filters * elements()) {
        for_each_group(table_.group, plane_.filters, [&](std::int64_t filter, std::int64_t filters) {
            transpose_(reinterpret_cast<const std::byte*>(w + filter * elements()), reinterpret_cast<std::byte*>(to),
                       elements() * kSize, filters * kSize, elements(), filters, false);
            to += elements() * filters;
        });
    }
    return watch == 0;
}

float ShallowConvolution::weight(const float* arranged, std::int64_t filter, std::int64_t element) const {
    float found = 0;
    for_each_group(table_.group, plane_.filters, [&](std::int64_t begin, std::int64_t filters) {
        if (filter >= begin && filter < begin + filters) {
            found = arranged[begin * elements() + element * filters + filter - begin];
        }
    });
    return found;
}

// Computes one result for a filter that is not finite: padding must not be multiplied by infinity.
float ShallowConvolution::sum_inside(const float* arranged, std::int64_t filter, std::int64_t row, std::int64_t column,
                                     const float* image) const {
    float sum = 0;
    for (std::int64_t e = 0; e < elements(); ++e) {
        const std::int64_t i = e / plane_.kernel[1] % plane_.kernel[0];
        const std::int64_t j = e % plane_.kernel[1];
        const std::int64_t h = row * plane_.strides[0] - plane_.begin[0] + i * plane_.dilations[0];
        const std::int64_t v = column * plane_.strides[1] - plane_.begin[1] + j * plane_.dilations[1];
        if (h >= 0 && h < plane_.height && v >= 0 && v < plane_.width) {
            const std::int64_t c = e / plane_.kernel[1] / plane_.kernel[0];
            sum += image[(c * plane_.height + h) * plane_.width + v] * weight(arranged, filter, e);
        }
    }
    return sum;
}

// `line` describes the whole result; its `x` is the image of the part.
void ShallowConvolution::compute(const Part& part, ShallowLine line, bool sound, float* copied) const {
    const float* const image = line.x;
    const std::int64_t plane = plane_.out_height * plane_.out_width;
    const PhaseLayout layout(plane_, columns_);
    float* const y = line.y;
    const float* const residual = line.epilogue.residual;
    if (sound) {
        copy(part, image, copied);
    } else {
        line.given = true;
        line.end = 0;
    }
    const std::int64_t step = plane_.strides[0] * layout.line();
    std::int64_t lines = part.rows;
    line.count = part.columns;
    if (joins_ && sound) {
        float* const joined = copied + plane_.channels * plane_.span(0, rows_) * layout.line();
        table_.join({copied, offsets_.data(), elements(), step, lines, line.count, joined, joined_step()});
        for (std::int64_t e = 0; e < elements(); ++e) {
            std::fill_n(joined + e * joined_step() + lines * line.count, joined_step() - lines * line.count, 0.0F);
        }
        copied = joined;
        line.offsets = joined_offsets_.data();
        line.count *= lines;
        lines = 1;
    }
    for (std::int64_t row = 0; row < lines; ++row) {
        const std::int64_t at = part.image * plane_.filters * plane + (part.row + row) * plane_.out_width + part.column;
        line.x = copied + row * step;
        if (plane_.channels == 1 && sound && !joins_) {  // skips the window's lines in the padding
            const std::int64_t top = (part.row + row) * plane_.strides[0] - plane_.begin[0];
            const std::int64_t apart = plane_.dilations[0];
            const std::int64_t begin =
                std::clamp<std::int64_t>(top < 0 ? (apart - 1 - top) / apart : 0, 0, plane_.kernel[0]);
            const std::int64_t inside = top < plane_.height ? (plane_.height - 1 - top) / apart + 1 : 0;
            line.begin = begin * plane_.kernel[1];
            line.end = std::clamp(inside, begin, plane_.kernel[0]) * plane_.kernel[1];
        }
        line.y = y + at;
        line.epilogue.residual = residual == nullptr ? nullptr : residual + at;
        for (std::int64_t i = 0; i < plane_.filters * part.columns && !sound; ++i) {
            const std::int64_t filter = i / part.columns;
            const std::int64_t column = i % part.columns;
            line.y[filter * plane + column] = sum_inside(line.w, filter, part.row + row, part.column + column, image) +
                                              (line.epilogue.bias == nullptr ? 0.0F : line.epilogue.bias[filter]);
        }
        table_.run(line);
    }
}

double ShallowConvolution::part_nanoseconds() const {
    return kProductNanoseconds * static_cast<double>(rows_ * columns_ * plane_.filters * elements());
}

void ShallowConvolution::compute_parts(const Operands& given, std::int64_t begin, std::int64_t end,
                                       float* copied) const {
    ShallowLine whole{};
    whole.offsets = offsets_.data();
    whole.elements = whole.end = elements();
    whole.w = given.weights;
    whole.filters = plane_.filters;
    whole.filter_step = plane_.out_height * plane_.out_width;
    whole.y = given.y;
    whole.epilogue = given.epilogue;
    for (std::int64_t at = begin; at < end; ++at) {
        const Part here = part(at);
        ShallowLine line = whole;
        line.x = given.x + here.image * plane_.channels * plane_.height * plane_.width;
        const std::int64_t filter = here.image % groups_ * plane_.filters;
        line.w += filter * elements();
        line.epilogue.bias += line.epilogue.bias == nullptr ? 0 : filter;
        compute(here, line, given.sound, copied);
    }
}

std::unique_ptr<Kernel> shallow_convolution(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                                            const Epilogue& epilogue, bool pack_weights, int threads) {
    return std::make_unique<ShallowConvolution>(x, w, y, window, epilogue, pack_weights, threads);
}

static const RecipeKind shallow_convolution_recipe(
    "ShallowConvolution", +[](ShallowConvolution* self, const Dims& x, const Dims& w, const Dims& y,
                              const Window& window, bool bias, Epilogue last, bool pack_weights, int threads) {
        last.bias = bias;
        new (self) ShallowConvolution(x, w, y, window, last, pack_weights, threads);
    });

GRAPHKIT_BINDINGS(shallow_conv, "conv", "epilogue") {
    nb::class_<ShallowConvolution, Kernel>(m, "ShallowConvolution")
        .def("__init__", shallow_convolution_recipe.init(), "x"_a, "w"_a, "y"_a, "window"_a, nb::kw_only(),
             "bias"_a = false, "epilogue"_a = Epilogue{}, "pack_weights"_a = false, "threads"_a = 0, NoGil());
}

}  // namespace graphkit
