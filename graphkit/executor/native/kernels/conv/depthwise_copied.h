// Depthwise convolutions with large windows, computed from copies of a few channels.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/conv/depthwise_table.h"
#include "kernels/pool/pool.h"

namespace graphkit {

// Copies lines of a few channels, with their padding, so that all windows have the same layout and are read from the
// first-level cache. In place, with many channels, the elements of a window are far apart and share few sets of the
// cache.
class CopiedDepthwise {
  public:
    CopiedDepthwise() = default;
    CopiedDepthwise(const PoolGeometry& geometry, std::int64_t images, std::int64_t channels, int threads);

    // Whether this class can compute the convolution: windows have 5 or 7 adjacent columns and enough lines; images
    // have at most two axes.
    static bool covers(const PoolGeometry& geometry);

    // Whether this is faster than the library for a result y of shape [N, C, ...].
    static bool suits_window(const Dims& y, const PoolWindow& window);

    // Whether all these filters, [kernel, C], are finite. Only then may the kernel multiply padding.
    bool suits(const float* filters) const;
    std::size_t scratch_bytes() const { return static_cast<std::size_t>(chunks_) * chunk_bytes(); }
    void run(const float* x, const float* filters, const DepthwiseFinish& finish, float* y, std::byte* scratch) const;

  private:
    // Some lines of the result, for some channels of an image.
    struct Part {
        std::int64_t image;
        std::int64_t channel, channels;
        std::int64_t line, lines;
    };

    Part part(std::int64_t number) const;
    std::int64_t copied_rows(std::int64_t lines) const { return (lines - 1) * line_step_ + reach_[0]; }
    std::size_t chunk_bytes() const;
    void copy_lines(const Part& part, const float* x, float* to) const;
    void copy_filters(const Part& part, const float* filters, float* to) const;
    void compute(const Part& part, const float* x, const float* filters, const DepthwiseFinish& finish, float* y,
                 float* own) const;

    const SlideTable* functions_ = nullptr;  // null if this class does not compute the convolution
    int threads_ = 1;
    std::int64_t channels_ = 0;
    std::int64_t taps_ = 0;
    std::int64_t input_[2] = {1, 1};
    std::int64_t output_[2] = {1, 1};
    std::int64_t begin_[2] = {0, 0};  // padding
    std::int64_t reach_[2] = {1, 1};  // of a window
    std::int64_t line_step_ = 1;
    std::int64_t kernel_[2] = {1, 1};
    std::int64_t dilation_ = 1;  // of lines
    std::int64_t width_ = 0;  // of a copied row
    std::int64_t lines_ = 1;  // of a part
    std::int64_t line_parts_ = 1, groups_ = 1, parts_ = 0, chunks_ = 0;
};

}  // namespace graphkit
