// LinearSample: images at coordinates between their elements.
#include <algorithm>
#include <limits>

#include "kernels/linear_sample/linear_sample_table.h"
#include "primitives/strided_copy.h"
#include "runtime/bindings.h"
#include "runtime/kernel.h"
#include "runtime/recipe.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// If an image has this many times more positions than points, reading planes at the points is faster than copying the
// image.
constexpr std::int64_t kFewPoints = 32;

// x [N, C, height, width], row and column [N, points] -> y [N, points, C]; the points have any number of axes. float32.
// If there are many points, images are first copied with the channels last, so that a point reads four rows of
// channels. Few points, and those of a single plane, read the planes where they are. Equal bits in both ways, and for
// any number of threads.
class LinearSample final : public Kernel {
  public:
    LinearSample(const Dims& x, const Dims& points, bool border, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    std::int64_t image_floats() const { return height_ * width_ * channels_; }
    std::int64_t zeros() const { return (channels_ + table_.lanes - 1) / table_.lanes * table_.lanes; }

    const LinearSampleTable& table_;
    std::int64_t images_, channels_, height_, width_;
    std::int64_t points_;  // in each image
    bool border_;
    bool single_ = false;  // one channel
    bool copied_ = false;  // with the channels last
    StridedCopy copy_;
};

LinearSample::LinearSample(const Dims& x, const Dims& points, bool border, int threads)
    : Kernel("LinearSample", threads), table_(linear_sample_table()), border_(border) {
    inputs_ = {{"x", x}, {"row", points}, {"column", points}};
    if (x.size() != 4 || points.empty() || points[0] != x[0]) {
        throw NativeError(describe() + ": images with two axes, and as many lists of points, are expected");
    }
    images_ = x[0];
    channels_ = x[1];
    height_ = x[2];
    width_ = x[3];
    Dims y = points;
    y.push_back(channels_);
    outputs_ = {{"y", y}};
    const std::int64_t elements = count(y);
    if (elements != 0 && height_ * width_ == 0) {
        throw NativeError(describe() + ": the images have no elements to sample: axis " + (height_ == 0 ? "2" : "3") +
                          " of x has size 0");
    }
    if (elements != 0 && std::max(height_, width_) > (std::int64_t{1} << 24)) {
        throw Unsupported(describe() + ": no kernel for images of this size");
    }
    points_ = elements == 0 ? 0 : count(points) / images_;
    single_ = channels_ == 1 && height_ * width_ < (std::int64_t{1} << 31);
    copied_ = !single_ && points_ * kFewPoints > height_ * width_;
    copy_ = StridedCopy({images_, height_ * width_, channels_}, {image_floats(), 1, height_ * width_},
                        {image_floats(), channels_, 1}, sizeof(float));
}

// Zeros, then the images, then a vector that may be read.
std::size_t LinearSample::scratch_bytes() const {
    if (!copied_) {
        return 0;
    }
    return static_cast<std::size_t>(zeros() + images_ * image_floats() + table_.lanes) * sizeof(float);
}

void LinearSample::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    if (points_ == 0) {
        return;
    }
    const auto* const x = static_cast<const float*>(inputs[0]);
    auto* const none = reinterpret_cast<float*>(scratch);
    float* const moved = none + zeros();
    if (copied_) {
        std::fill_n(none, zeros(), 0.0F);
        copy_.run(threads(), x, moved);
    }
    const float* const images = copied_ ? moved : x;
    const auto sample = single_ ? table_.sample_plane : copied_ ? table_.sample : table_.sample_planes;
    constexpr double kPointNanoseconds = 4;
    constexpr double kElementNanoseconds = 0.15;
    constexpr double kPlaneNanoseconds = 4;
    const double element = copied_ ? kElementNanoseconds : kPlaneNanoseconds;
    const double cost = kPointNanoseconds + element * static_cast<double>(channels_);
    parallel_for(threads(), images_ * points_, cost, [&](std::int64_t begin, std::int64_t end) {
        while (begin < end) {
            const std::int64_t image = begin / points_;
            const std::int64_t some = std::min(end, (image + 1) * points_) - begin;
            sample({images + image * image_floats(), none, height_, width_, channels_,
                    static_cast<const float*>(inputs[1]) + begin, static_cast<const float*>(inputs[2]) + begin, some,
                    border_, static_cast<float*>(outputs[0]) + begin * channels_});
            begin += some;
        }
    });
}

const RecipeKind linear_sample_recipe(
    "LinearSample", +[](LinearSample* self, const Dims& x, const Dims& points, bool border, int threads) {
        new (self) LinearSample(x, points, border, threads);
    });

}  // namespace

GRAPHKIT_BINDINGS(linear_sample) {
    nb::class_<LinearSample, Kernel>(m, "LinearSample")
        .def("__init__", linear_sample_recipe.init(), "x"_a, "points"_a, nb::kw_only(), "border"_a, "threads"_a = 0);
}

}  // namespace graphkit
