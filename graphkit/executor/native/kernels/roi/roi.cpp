// RoiAlign: pools regions of images.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "runtime/bindings.h"
#include "runtime/kernel.h"
#include "runtime/operator_kernels.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

struct RoiOptions {
    std::int64_t height = 1;
    std::int64_t width = 1;
    std::int64_t samples = 0;  // along each axis of a bin; 0: the bin's size in elements, rounded up
    float scale = 1;
    bool half_pixel = true;
    bool maximum = false;
};

// x: [N, C, H, W], rois: [R, 4], images: int64 [R] -> y: [R, C, height, width], float32.
//
// A mean of bilinear samples is a weighted sum of elements, and each weight is the product of a weight for the row and
// one for the column. The weights of all samples of a bin are added first, so that the cost does not depend on the
// number of samples.
class RoiAlign final : public Kernel {
  public:
    RoiAlign(const Dims& x, std::int64_t rois, const RoiOptions& options, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    struct Bins;

    std::int64_t axis_floats(std::int64_t bins, std::int64_t size) const { return bins * (size + 2); }
    Bins weighted(float first, float last, std::int64_t bins, std::int64_t size, float* memory) const;
    void mean(const float* plane, const Bins& rows, const Bins& columns, float* line, float* y) const;
    void largest(const float* plane, const float* roi, float* y) const;

    RoiOptions options_;
    std::int64_t images_, channels_, height_, width_, rois_;
};

// Largest number of samples along one axis of a bin, and of a bin whose samples are evaluated one by one. Larger
// regions are rejected.
constexpr float kMostSamples = 1 << 20;
constexpr std::int64_t kMostLookedAt = 1 << 26;

// A sample along one axis: two adjacent elements and their weights, which are 0 if the sample is too far outside.
struct Sample {
    std::int64_t low;
    std::int64_t high;
    float low_weight;
    float high_weight;
};

Sample sample_at(float at, std::int64_t size) {
    const auto last = static_cast<float>(size - 1);
    // Up to one element beyond the border, the border is repeated. A NaN position is outside.
    const bool near = at >= -1.0F && at <= static_cast<float>(size);
    const float inside = at >= 0.0F ? std::min(at, last) : 0.0F;
    const float low = std::floor(inside);
    const auto place = static_cast<std::int64_t>(low);
    const float high = inside - low;
    return {place, std::min(place + 1, size - 1), near ? 1.0F - high : 0.0F, near ? high : 0.0F};
}

// The division of a region into bins along one axis.
struct Division {
    float start;
    float size;  // of a bin
    std::int64_t samples;

    Division(float first, float last, std::int64_t bins, const RoiOptions& options) {
        float length = (last - first) * options.scale;
        if (!options.half_pixel) {
            length = std::max(length, 1.0F);
        }
        start = first * options.scale - (options.half_pixel ? 0.5F : 0.0F);
        size = length / static_cast<float>(bins);
        const bool counted = options.samples == 0;
        samples = counted ? static_cast<std::int64_t>(size > 0.0F ? std::ceil(std::min(size, kMostSamples)) : 0.0F)
                          : options.samples;
    }

    bool is_sane() const { return !(size > kMostSamples); }

    float place(std::int64_t bin, std::int64_t sample) const {
        const float spacing = size / static_cast<float>(std::max<std::int64_t>(samples, 1));
        return start + static_cast<float>(bin) * size + (static_cast<float>(sample) + 0.5F) * spacing;
    }
};

}  // namespace

// For each bin of an axis, the weights of its elements, from `first` on, summed over all samples.
struct RoiAlign::Bins {
    float* weights;       // [bins][size]
    float* bounds;        // [bins][2]: the first and the last element with a weight
    std::int64_t size;
    std::int64_t samples;  // number of samples in a bin

    std::int64_t first(std::int64_t bin) const { return static_cast<std::int64_t>(bounds[2 * bin]); }
    std::int64_t last(std::int64_t bin) const { return static_cast<std::int64_t>(bounds[2 * bin + 1]); }
    const float* of(std::int64_t bin) const { return weights + bin * size; }
};

RoiAlign::RoiAlign(const Dims& x, std::int64_t rois, const RoiOptions& options, int threads)
    : Kernel("RoiAlign", threads), options_(options), rois_(rois) {
    if (x.size() != 4 || options.height < 1 || options.width < 1 || options.samples < 0) {
        throw NativeError(name() + ": regions of " + to_string(x));
    }
    images_ = x[0];
    channels_ = x[1];
    height_ = x[2];
    width_ = x[3];
    if (std::max(height_, width_) > (1 << 24) || height_ * width_ == 0) {
        throw Unsupported(name() + ": an image of " + to_string(x));
    }
    if (options.samples > static_cast<std::int64_t>(kMostSamples) ||
        (options.maximum && options.samples * options.samples > kMostLookedAt)) {
        throw Unsupported(name() + ": " + std::to_string(options.samples) + " samples along an axis");
    }
    inputs_ = {{"x", x}, {"rois", {rois, 4}}, {"images", {rois}, ElementType::i64}};
    outputs_ = {{"y", {rois, channels_, options.height, options.width}}};
}

std::size_t RoiAlign::scratch_bytes() const {
    const std::int64_t floats =
        axis_floats(options_.height, height_) + axis_floats(options_.width, width_) + width_ + 16;
    return static_cast<std::size_t>(std::max(threads(), 1) * floats) * sizeof(float);
}

RoiAlign::Bins RoiAlign::weighted(float first, float last, std::int64_t bins, std::int64_t size, float* memory) const {
    const Division division(first, last, bins, options_);
    const Bins result{memory, memory + bins * size, size, division.samples};
    std::fill_n(result.weights, bins * size, 0.0F);
    for (std::int64_t bin = 0; bin < bins; ++bin) {
        float* weights = result.weights + bin * size;
        std::int64_t low = size;
        std::int64_t high = -1;
        for (std::int64_t i = 0; i < division.samples; ++i) {
            const Sample sample = sample_at(division.place(bin, i), size);
            weights[sample.low] += sample.low_weight;
            weights[sample.high] += sample.high_weight;
            low = std::min(low, sample.low);
            high = std::max(high, sample.high);
        }
        result.bounds[2 * bin] = static_cast<float>(low);
        result.bounds[2 * bin + 1] = static_cast<float>(high);
    }
    return result;
}

void RoiAlign::mean(const float* plane, const Bins& rows, const Bins& columns, float* line, float* y) const {
    std::int64_t begin = width_;
    std::int64_t end = -1;
    for (std::int64_t bin = 0; bin < options_.width; ++bin) {
        begin = std::min(begin, columns.first(bin));
        end = std::max(end, columns.last(bin));
    }
    const auto count = static_cast<float>(std::max<std::int64_t>(rows.samples * columns.samples, 1));
    for (std::int64_t bin = 0; bin < options_.height; ++bin) {
        // Sum the bin's rows, weighted, into `line`; then sum the elements of each bin of columns.
        for (std::int64_t c = begin; c <= end; ++c) {
            line[c] = 0;
        }
        for (std::int64_t r = rows.first(bin); r <= rows.last(bin); ++r) {
            const float weight = rows.of(bin)[r];
            const float* row = plane + r * width_;
#pragma omp simd
            for (std::int64_t c = begin; c <= end; ++c) {
                line[c] += weight * row[c];
            }
        }
        for (std::int64_t column = 0; column < options_.width; ++column) {
            const float* weights = columns.of(column);
            float total = 0;
            for (std::int64_t c = columns.first(column); c <= columns.last(column); ++c) {
                total += weights[c] * line[c];
            }
            y[bin * options_.width + column] = total / count;
        }
    }
}

void RoiAlign::largest(const float* plane, const float* roi, float* y) const {
    const Division rows(roi[1], roi[3], options_.height, options_);
    const Division columns(roi[0], roi[2], options_.width, options_);
    for (std::int64_t bin = 0; bin < options_.height; ++bin) {
        for (std::int64_t column = 0; column < options_.width; ++column) {
            float most = -std::numeric_limits<float>::infinity();
            bool undefined = false;
            for (std::int64_t i = 0; i < rows.samples; ++i) {
                const Sample v = sample_at(rows.place(bin, i), height_);
                for (std::int64_t j = 0; j < columns.samples; ++j) {
                    const Sample h = sample_at(columns.place(column, j), width_);
                    for (const float term : {v.low_weight * h.low_weight * plane[v.low * width_ + h.low],
                                             v.low_weight * h.high_weight * plane[v.low * width_ + h.high],
                                             v.high_weight * h.low_weight * plane[v.high * width_ + h.low],
                                             v.high_weight * h.high_weight * plane[v.high * width_ + h.high]}) {
                        undefined |= std::isnan(term);
                        most = std::max(most, term);
                    }
                }
            }
            const bool held = rows.samples * columns.samples > 0;
            y[bin * options_.width + column] = undefined ? std::numeric_limits<float>::quiet_NaN() : held ? most : 0;
        }
    }
}

void RoiAlign::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const auto* x = static_cast<const float*>(inputs[0]);
    const auto* rois = static_cast<const float*>(inputs[1]);
    const auto* images = static_cast<const std::int64_t*>(inputs[2]);
    auto* y = static_cast<float*>(outputs[0]);
    for (const std::int64_t image : std::span(images, static_cast<std::size_t>(rois_))) {
        if (image < 0 || image >= images_) {
            throw NativeError(describe() + ": a region lies in image " + std::to_string(image));
        }
    }
    for (std::int64_t r = 0; r < rois_; ++r) {
        const float* roi = rois + 4 * r;
        const Division columns(roi[0], roi[2], options_.width, options_);
        const Division rows(roi[1], roi[3], options_.height, options_);
        const bool too_many = options_.maximum && columns.samples * rows.samples > kMostLookedAt;
        if (!columns.is_sane() || !rows.is_sane() || too_many) {
            throw NativeError(describe() + ": region " + std::to_string(r) + " is too large");
        }
    }
    const std::int64_t bins = options_.height * options_.width;
    const std::int64_t own = static_cast<std::int64_t>(scratch_bytes() / sizeof(float)) / std::max(threads(), 1);
    const double cost = static_cast<double>(channels_ * bins) * 10;
    parallel_for(threads(), rois_, cost, [&](std::int64_t begin, std::int64_t end) {
        float* memory = reinterpret_cast<float*>(scratch) + own * thread_number();
        float* beside = memory + axis_floats(options_.height, height_);
        float* line = beside + axis_floats(options_.width, width_);
        for (std::int64_t r = begin; r < end; ++r) {
            const float* roi = rois + 4 * r;
            const float* image = x + images[r] * channels_ * height_ * width_;
            float* to = y + r * channels_ * bins;
            if (options_.maximum) {
                for (std::int64_t c = 0; c < channels_; ++c) {
                    largest(image + c * height_ * width_, roi, to + c * bins);
                }
                continue;
            }
            const Bins rows = weighted(roi[1], roi[3], options_.height, height_, memory);
            const Bins columns = weighted(roi[0], roi[2], options_.width, width_, beside);
            for (std::int64_t c = 0; c < channels_; ++c) {
                mean(image + c * height_ * width_, rows, columns, line, to + c * bins);
            }
        }
    });
}

GRAPHKIT_KERNEL("", RoiAlign) {
    if (node.outputs[0].type != ElementType::f32) {
        throw Unsupported(std::string("RoiAlign of ") + name_of(node.outputs[0].type));
    }
    const RoiOptions options{node.integer("output_height"),
                             node.integer("output_width"),
                             node.integer("sampling_ratio"),
                             static_cast<float>(node.real("spatial_scale")),
                             node.text("coordinate_transformation_mode") == "half_pixel",
                             node.text("mode") == "max"};
    return std::make_unique<RoiAlign>(node.input(0).tensor.shape, node.input(1).tensor.shape.at(0), options,
                                      node.threads);
}

GRAPHKIT_BINDINGS(roi) {
    nb::class_<RoiAlign, Kernel>(m, "RoiAlign")
        .def(
            "__init__",
            [](RoiAlign* self, const Dims& x, std::int64_t rois, std::int64_t height, std::int64_t width,
               std::int64_t samples, double scale, bool half_pixel, bool maximum, int threads) {
                const RoiOptions options{height, width, samples, static_cast<float>(scale), half_pixel, maximum};
                new (self) RoiAlign(x, rois, options, threads);
            },
            "x"_a, "rois"_a, nb::kw_only(), "height"_a, "width"_a, "samples"_a, "scale"_a, "half_pixel"_a, "maximum"_a,
            "threads"_a = 0);
}

}  // namespace graphkit
