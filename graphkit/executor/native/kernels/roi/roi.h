// Regions of images: RoiAlign and NonMaxSuppression.
#pragma once

#include <optional>

#include "runtime/kernel.h"

namespace graphkit {

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

// boxes: [N, B, 4], scores: [N, C, B], float32 -> up to `capacity()` rows (image, class, box) of int64 and their number.
// Boxes of equal scores are taken in their order; a box above the threshold of overlap with a better one is left out.
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

}  // namespace graphkit
