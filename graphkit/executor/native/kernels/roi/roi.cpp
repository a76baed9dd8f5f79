// Regions of images: RoiAlign and NonMaxSuppression.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "runtime/bindings.h"
#include "runtime/kernel.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

struct RoiOptions {
    std::int64_t height = 1;
    std::int64_t width = 1;
    std::int64_t samples = 0;  // along each axis of a bin; 0: as many as it holds elements, rounded up
    float scale = 1;
    bool half_pixel = true;
    bool maximum = false;
};

// x: [N, C, H, W], rois: [R, 4], images: int64 [R] -> y: [R, C, height, width], float32.
//
// A mean of bilinear samples is a weighted sum of elements whose weights are products of one for the row and one for
// the column: those of all samples of a bin are added up first, so that the cost does not depend on their number.
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

// boxes: [N, B, 4], scores: [N, C, B], float32 -> up to `capacity()` rows (image, class, box) of int64 and their
// number. Boxes of equal scores are taken in their order; a box above the threshold of overlap with a better one is
// left out.
class NonMaxSuppression final : public Kernel {
  public:
    NonMaxSuppression(std::int64_t images, std::int64_t classes, std::int64_t boxes, std::int64_t most, float overlap,
                      std::optional<float> least, bool centred, int threads);

    std::int64_t capacity() const { return images_ * classes_ * most_; }
    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    std::int64_t select(const float* corners, const float* scores, std::int32_t* order, std::int64_t* chosen) const;

    std::int64_t images_, classes_, boxes_, most_;
    float overlap_;
    std::optional<float> least_;
    bool centred_;
};

// Samples along one axis of a bin; larger regions are refused.
constexpr float kMostSamples = 1 << 20;

// A sample along one axis: two neighbours and their weights, which are 0 for a sample that lies too far outside.
struct Sample {
    std::int64_t low;
    std::int64_t high;
    float low_weight;
    float high_weight;
};

Sample sample_at(float at, std::int64_t size) {
    const auto last = static_cast<float>(size - 1);
    // Up to one element beyond the border, the border is repeated. NaN lies nowhere.
    const bool near = at >= -1.0F && at <= static_cast<float>(size);
    const float inside = at >= 0.0F ? std::min(at, last) : 0.0F;
    const float low = std::floor(inside);
    const auto place = static_cast<std::int64_t>(low);
    const float high = inside - low;
    return {place, std::min(place + 1, size - 1), near ? 1.0F - high : 0.0F, near ? high : 0.0F};
}

// How the bins of a region divide one axis.
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

// For each bin of an axis the weights of the elements from `first` on: those of all its samples.
struct RoiAlign::Bins {
    float* weights;       // [bins][size]
    float* bounds;        // [bins][2]: the first and the last element with a weight, behind each other
    std::int64_t size;
    std::int64_t samples;  // in a bin

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
        // The weighted sum of the bin's rows, and of its elements for each bin of columns.
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
        if (!Division(roi[0], roi[2], options_.width, options_).is_sane() ||
            !Division(roi[1], roi[3], options_.height, options_).is_sane()) {
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

// --- suppression ------------------------------------------------------------------------------------

NonMaxSuppression::NonMaxSuppression(std::int64_t images, std::int64_t classes, std::int64_t boxes, std::int64_t most,
                                     float overlap, std::optional<float> least, bool centred, int threads)
    : Kernel("NonMaxSuppression", threads),
      images_(images),
      classes_(classes),
      boxes_(boxes),
      most_(std::clamp<std::int64_t>(most, 0, boxes)),
      overlap_(overlap),
      least_(least),
      centred_(centred) {
    if (boxes > std::numeric_limits<std::int32_t>::max()) {
        throw Unsupported(name() + ": " + std::to_string(boxes) + " boxes");
    }
    inputs_ = {{"boxes", {images, boxes, 4}}, {"scores", {images, classes, boxes}}};
    outputs_ = {{"selected", {capacity(), 3}, ElementType::i64}, {"count", {}, ElementType::i64}};
}

std::size_t NonMaxSuppression::scratch_bytes() const {
    // Corners and areas of all boxes, the order of one class's for each thread, and how many each class has selected.
    const auto corners = static_cast<std::size_t>(images_ * boxes_ * 5) * sizeof(float);
    const auto orders = static_cast<std::size_t>(std::max(threads(), 1) * boxes_) * sizeof(std::int32_t);
    return corners + orders + static_cast<std::size_t>(images_ * classes_) * sizeof(std::int64_t) + kAlignment;
}

// Positions of the boxes of one class, best first; `corners` holds y1, x1, y2, x2, area of each box.
std::int64_t NonMaxSuppression::select(const float* corners, const float* scores, std::int32_t* order,
                                       std::int64_t* chosen) const {
    std::int64_t candidates = 0;
    for (std::int64_t i = 0; i < boxes_; ++i) {
        if (!least_ || scores[i] > *least_) {
            order[candidates++] = static_cast<std::int32_t>(i);
        }
    }
    // NaN is better than any number, as in a sort.
    const auto better = [scores](std::int32_t a, std::int32_t b) {
        const bool undefined = std::isnan(scores[a]);
        if (undefined || std::isnan(scores[b])) {
            return undefined != std::isnan(scores[b]) ? undefined : a < b;
        }
        return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
    };
    // A heap: mostly few of the candidates are looked at.
    const auto worse = [&better](std::int32_t a, std::int32_t b) { return better(b, a); };
    std::make_heap(order, order + candidates, worse);
    std::int64_t count = 0;
    while (candidates > 0 && count < most_) {
        std::pop_heap(order, order + candidates, worse);
        const std::int64_t next = order[--candidates];
        const float* box = corners + 5 * next;
        const bool hidden = std::any_of(chosen, chosen + count, [&](std::int64_t other) {
            const float* best = corners + 5 * other;
            const float high = std::max(std::min(box[2], best[2]) - std::max(box[0], best[0]), 0.0F);
            const float wide = std::max(std::min(box[3], best[3]) - std::max(box[1], best[1]), 0.0F);
            const float shared = high * wide;
            if (shared == 0 && overlap_ >= 0) {
                return false;
            }
            // Boxes without area share none: 0 / 0 is above no threshold.
            return shared / (box[4] + best[4] - shared) > overlap_;
        });
        if (!hidden) {
            chosen[count++] = next;
        }
    }
    return count;
}

void NonMaxSuppression::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const auto* boxes = static_cast<const float*>(inputs[0]);
    const auto* scores = static_cast<const float*>(inputs[1]);
    auto* selected = static_cast<std::int64_t*>(outputs[0]);
    auto* counts = reinterpret_cast<std::int64_t*>(scratch);
    auto* corners = reinterpret_cast<float*>(counts + images_ * classes_);
    auto* orders = reinterpret_cast<std::int32_t*>(corners + images_ * boxes_ * 5);
    for (std::int64_t i = 0; i < images_ * boxes_; ++i) {
        const float* box = boxes + 4 * i;
        float* to = corners + 5 * i;
        for (int axis = 0; axis < 2; ++axis) {
            const float a = box[axis];
            const float b = box[axis + 2];
            to[axis] = centred_ ? a - b / 2 : std::min(a, b);
            to[axis + 2] = centred_ ? a + b / 2 : std::max(a, b);
        }
        to[4] = (to[2] - to[0]) * (to[3] - to[1]);
    }
    // Each class writes its positions to the third part of its rows' memory, from where they are spread out.
    const std::int64_t room = 3 * most_;
    const double cost = static_cast<double>(boxes_) * 20;
    parallel_for(threads(), images_ * classes_, cost, [&](std::int64_t begin, std::int64_t end) {
        std::int32_t* order = orders + boxes_ * thread_number();
        for (std::int64_t i = begin; i < end; ++i) {
            const float* own = corners + i / classes_ * boxes_ * 5;
            counts[i] = select(own, scores + i * boxes_, order, selected + i * room);
        }
    });
    std::int64_t rows = 0;
    for (std::int64_t i = 0; i < images_ * classes_; ++i) {
        std::int64_t* from = selected + i * room;
        // Row k goes to 3 k and behind: before the positions that are read later, except those of this class itself.
        std::copy_backward(from, from + counts[i], from + room);
        const std::int64_t* kept = from + room - counts[i];
        for (std::int64_t k = 0; k < counts[i]; ++k, ++rows) {
            const std::int64_t box = kept[k];
            selected[3 * rows] = i / classes_;
            selected[3 * rows + 1] = i % classes_;
            selected[3 * rows + 2] = box;
        }
    }
    *static_cast<std::int64_t*>(outputs[1]) = rows;
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
    nb::class_<NonMaxSuppression, Kernel>(m, "NonMaxSuppression")
        .def(nb::init<std::int64_t, std::int64_t, std::int64_t, std::int64_t, float, std::optional<float>, bool, int>(),
             "images"_a, "classes"_a, "boxes"_a, nb::kw_only(), "most"_a, "overlap"_a, "least"_a.none(), "centred"_a,
             "threads"_a = 0)
        .def_prop_ro("capacity", &NonMaxSuppression::capacity, "The most rows that can be selected.");
}

}  // namespace graphkit
