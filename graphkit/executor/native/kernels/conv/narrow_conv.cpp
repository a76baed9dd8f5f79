// Convolution with few filters, of data with the channels last: float32, one or two spatial dimensions, one group.
// Results do not depend on the number of threads.
#include <algorithm>
#include <vector>

#include "kernels/conv/following.h"
#include "kernels/conv/narrow_table.h"
#include "kernels/conv/plane.h"
#include "runtime/bindings.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

constexpr std::int64_t kMostFilters = 8;
// Shorter runs leave most lanes of a vector without work.
constexpr std::int64_t kLeastRun = 8;
// A part of the results: so many of a line at most, and so many floats of the image.
constexpr std::int64_t kPartColumns = 64;
constexpr std::int64_t kPartFloats = 1 << 15;
constexpr double kVectorNanoseconds = 0.5;

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
    return (a + b - 1) / b;
}

// y = epilogue(conv(x, w) + bias). Shapes are given as [N, C, spatial], arrays lie as [N, spatial, C]; w [M, C, kernel]
// lies as it is; constant weights may come packed. The residual is the last input.
class NarrowConvolution final : public Kernel {
  public:
    // Throws Unsupported for what ConvPlane does not cover, and for a scaled product; NativeError for shapes that do
    // not fit.
    NarrowConvolution(const Dims& x, const Dims& w, const Dims& y, const Window& window, const Epilogue& epilogue,
                      bool pack_weights, int threads);

    // Whether this is faster than filters in lanes.
    static bool suits(const Dims& x, const Dims& w, const Dims& y, const Window& window);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<int> packed_inputs() const override { return packed_ ? std::vector{1} : std::vector<int>{}; }
    std::size_t packed_bytes(int input) const override;
    std::string packed_layout(int input) const override;
    void pack(int input, const void* plain, void* packed) const override;
    std::vector<std::pair<int, int>> inplace() const override;
    std::string implementation() const override { return "narrow:" + isa_; }

  private:
    struct Part {
        std::int64_t image, row, rows, column, columns;
    };

    Part part(std::int64_t number) const;
    std::int64_t parts() const { return plane_.images * row_parts_ * column_parts_; }
    // The image below a part's windows lies in itself, or is copied with zeros around it.
    bool inside(const Part& part) const;
    void copy(const Part& part, const float* image, float* to) const;
    // Where windows begin in runs: of a line of the window, or of one element.
    std::int64_t runs() const {
        return plane_.dilations[1] == 1 ? plane_.kernel[0] : plane_.kernel[0] * plane_.kernel[1];
    }
    std::int64_t run_floats() const {
        return plane_.dilations[1] == 1 ? plane_.kernel[1] * plane_.channels : plane_.channels;
    }
    std::size_t weight_bytes() const;
    std::size_t copy_bytes() const;
    std::size_t workers() const { return static_cast<std::size_t>(std::min<std::int64_t>(threads(), parts())); }
    void arrange(const float* w, std::byte* to) const;
    NarrowLine line() const;
    void place_runs(std::int64_t pitch, std::vector<std::int64_t>& offsets) const;
    void compute(const Part& part, NarrowLine line, bool sound, float* copied,
                 std::vector<std::int64_t>& offsets) const;
    float sum_inside(const NarrowLine& line, std::int64_t filter, std::int64_t row, std::int64_t column,
                     const float* image) const;

    const NarrowTable& table_;
    std::string isa_;
    ConvPlane plane_{};
    bool packed_;
    Following following_;
    std::int64_t rows_ = 1;  // of a part at most
    std::int64_t row_parts_ = 0;
    std::int64_t column_parts_ = 0;
};

}  // namespace

bool NarrowConvolution::suits(const Dims& x, const Dims& w, const Dims& y, const Window& window) {
    if (!ConvPlane::covers(x, w, y, window) || w[0] > kMostFilters) {
        return false;
    }
    // Of windows that are far apart, most of what would be copied is not read.
    const std::size_t last = window.dilations.size() - 1;
    const std::int64_t lines = last == 0 ? 1 : (w[2] - 1) * window.dilations[0] + 1;
    const std::int64_t columns =
        (std::min(y.back(), kPartColumns) - 1) * window.strides[last] + (w.back() - 1) * window.dilations[last] + 1;
    const bool apart = *std::max_element(window.dilations.begin(), window.dilations.end()) > 1;
    return (!apart || lines * columns * w[1] <= kPartFloats) &&
           w[1] * (window.dilations[last] == 1 ? w.back() : 1) >= kLeastRun;
}

NarrowConvolution::NarrowConvolution(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                                     const Epilogue& epilogue, bool pack_weights, int threads)
    : Kernel("NarrowConvolution", threads > 0 ? threads : default_threads()),
      table_(narrow_table()),
      isa_(isa_name()),
      packed_(pack_weights) {
    inputs_ = {{"x", x}, {"w", w}};
    outputs_ = {{"y", y}};
    if (epilogue.alpha != 1 || !ConvPlane::covers(x, w, y, window)) {
        throw Unsupported(describe() + ": not by the method narrow");
    }
    plane_ = ConvPlane::of(*this, x, w, y, window);
    const auto last = [](const Dims& dims) {
        Dims moved(dims);
        std::rotate(moved.begin() + 1, moved.begin() + 2, moved.end());
        return moved;
    };
    inputs_[0].shape = last(x);
    outputs_[0].shape = last(y);
    inputs_.push_back({"bias", {plane_.filters}, ElementType::f32, !epilogue.bias});
    if (epilogue.residual != 0) {
        inputs_.push_back({"residual", outputs_[0].shape});
    }
    following_ =
        Following(epilogue, plane_.images * plane_.out_height * plane_.out_width, plane_.filters, this->threads());
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

// Whether the weights are finite, then the weights.
std::size_t NarrowConvolution::weight_bytes() const {
    const std::int64_t run = divide_up(run_floats(), table_.grain) * table_.grain;
    return kAlignment + aligned(static_cast<std::size_t>(plane_.filters * runs() * run) * sizeof(float));
}

std::size_t NarrowConvolution::copy_bytes() const {
    const std::int64_t columns = divide_up(plane_.out_width, std::max<std::int64_t>(column_parts_, 1));
    const std::int64_t floats = plane_.span(0, rows_) * plane_.span(1, columns) * plane_.channels;
    return plane_.pads() ? aligned(static_cast<std::size_t>(floats) * sizeof(float)) : 0;
}

// Weights, then a copy for each thread, then what follows.
std::size_t NarrowConvolution::scratch_bytes() const {
    return (packed_ ? 0 : weight_bytes()) + workers() * copy_bytes() + following_.scratch_bytes();
}

std::size_t NarrowConvolution::packed_bytes(int input) const {
    require_packed(input);
    return weight_bytes();
}

std::string NarrowConvolution::packed_layout(int input) const {
    require_packed(input);
    return implementation() + (plane_.dilations[1] == 1 ? " joined " : " ") + to_string(inputs_[1].shape);
}

void NarrowConvolution::pack(int input, const void* plain, void* packed) const {
    require_packed(input);
    arrange(static_cast<const float*>(plain), static_cast<std::byte*>(packed));
}

std::vector<std::pair<int, int>> NarrowConvolution::inplace() const {
    return inputs_.size() > 3 ? std::vector<std::pair<int, int>>{{3, 0}} : std::vector<std::pair<int, int>>{};
}

void NarrowConvolution::arrange(const float* w, std::byte* to) const {
    const std::int64_t taps = plane_.kernel[0] * plane_.kernel[1];
    const bool joined = plane_.dilations[1] == 1;
    const NarrowFilters given{w, plane_.channels, plane_.channels * taps, joined ? plane_.kernel[1] : 1, 1, taps};
    const bool sound = table_.arrange(given, line(), reinterpret_cast<float*>(to + kAlignment));
    *reinterpret_cast<std::uint8_t*>(to) = sound ? 1 : 0;
}

// What all lines share.
NarrowLine NarrowConvolution::line() const {
    NarrowLine made{};
    made.step = plane_.strides[1] * plane_.channels;
    made.runs = runs();
    made.run = run_floats();
    made.filters = plane_.filters;
    return made;
}

// Where the runs of a window begin, in an image with so many floats in a line.
void NarrowConvolution::place_runs(std::int64_t pitch, std::vector<std::int64_t>& offsets) const {
    const std::int64_t columns = runs() / plane_.kernel[0];
    offsets.clear();
    for (std::int64_t i = 0; i < plane_.kernel[0]; ++i) {
        for (std::int64_t j = 0; j < columns; ++j) {
            offsets.push_back(i * plane_.dilations[0] * pitch + j * plane_.dilations[1] * plane_.channels);
        }
    }
}

// One result of a filter that is not finite: padding times infinity must not be added.
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

// `line` is that of the whole result, on the image of the part.
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

void NarrowConvolution::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const auto* weights = static_cast<const std::byte*>(inputs[1]);
    if (!packed_) {
        arrange(static_cast<const float*>(inputs[1]), scratch);
        weights = scratch;
        scratch += weight_bytes();
    }
    std::byte* const rest = scratch + workers() * copy_bytes();
    const void* bias = inputs[2];
    const void* residual = inputs_.size() > 3 ? inputs[3] : nullptr;
    NarrowLine whole = line();
    whole.w = reinterpret_cast<const float*>(weights + kAlignment);
    whole.y = following_.product(outputs[0], rest);
    whole.epilogue = following_.on_the_way(bias, residual);
    const bool sound = *reinterpret_cast<const std::uint8_t*>(weights) != 0;
    const auto* x = static_cast<const float*>(inputs[0]);
    const std::int64_t vectors = plane_.filters * runs() * divide_up(run_floats(), table_.grain);
    const std::int64_t results = plane_.images * plane_.out_height * plane_.out_width;
    const double cost = kVectorNanoseconds * static_cast<double>(vectors) * static_cast<double>(results) /
                        static_cast<double>(std::max<std::int64_t>(parts(), 1));
    parallel_for(threads(), parts(), cost, [&](std::int64_t begin, std::int64_t end) {
        auto* copied = reinterpret_cast<float*>(scratch + static_cast<std::size_t>(thread_number()) * copy_bytes());
        std::vector<std::int64_t> offsets;
        for (std::int64_t at = begin; at < end; ++at) {
            const Part here = part(at);
            NarrowLine line = whole;
            line.first = x + here.image * plane_.height * plane_.width * plane_.channels;
            compute(here, line, sound, copied, offsets);
        }
    });
    following_.pass(whole.y, residual, outputs[0], rest);
}

GRAPHKIT_BINDINGS(narrow_conv, "conv", "epilogue") {
    nb::class_<NarrowConvolution, Kernel>(m, "NarrowConvolution")
        .def(
            "__init__",
            [](NarrowConvolution* self, const Dims& x, const Dims& w, const Dims& y, const Window& window, bool bias,
               Epilogue last, bool pack_weights, int threads) {
                last.bias = bias;
                new (self) NarrowConvolution(x, w, y, window, last, pack_weights, threads);
            },
            "x"_a, "w"_a, "y"_a, "window"_a, nb::kw_only(), "bias"_a = false, "epilogue"_a = Epilogue{},
            "pack_weights"_a = false, "threads"_a = 0, NoGil())
        .def_static("suits", &NarrowConvolution::suits, "x"_a, "w"_a, "y"_a, "window"_a,
                    "Whether there are so few filters that this is faster than filters in the lanes of vectors.");
}

}  // namespace graphkit
