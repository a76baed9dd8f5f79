// Max pooling with indices, average pooling, and their gradients: float32, one to three spatial dimensions.
// Threads own whole planes (one image, one channel), so results do not depend on their number.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "runtime/kernel.h"

namespace graphkit {

struct PoolWindow {
    Dims kernel;
    Dims strides;
    Dims dilations;
    Dims pads_begin;
    Dims pads_end;
};

// The kernel positions of one window along one axis that fall into the input: first to last - 1, of which position 0
// lies at `start`; and how many fall into the padded extent.
struct Span {
    std::int64_t start;
    std::int64_t first;
    std::int64_t last;
    std::int64_t padded;

    std::int64_t count() const { return last - first; }
};

// The windows first to last - 1 of a row, whose element number `position` of the kernel row falls into the input:
// that of window w is w * stride + offset.
struct Tap {
    std::int64_t first;
    std::int64_t last;
    std::int64_t offset;
};

// The spatial part of a pooling, padded in front to three dimensions. Loops go over the windows of one row inside, so
// that they have no branches; each window sees its elements in row-major order.
struct PoolGeometry {
    std::int64_t planes = 0;  // N * C
    std::int64_t input[3] = {1, 1, 1};
    std::int64_t kernel[3] = {1, 1, 1};
    std::int64_t dilation[3] = {1, 1, 1};
    std::int64_t stride = 1;       // along the last axis
    std::vector<Span> windows[3];  // along each axis
    std::vector<Tap> taps;         // of a kernel row

    std::int64_t row() const { return static_cast<std::int64_t>(windows[2].size()); }
    std::int64_t input_size() const { return input[0] * input[1] * input[2]; }
    std::int64_t output_size() const { return std::int64_t(windows[0].size() * windows[1].size() * windows[2].size()); }
    // How many elements of the kernel fall into the input at most: a kernel may be much larger than what it meets.
    std::int64_t most_inside() const {
        return std::min(kernel[0], input[0]) * std::min(kernel[1], input[1]) * std::min(kernel[2], input[2]);
    }
};

class VectorPool;

// Checks the shapes, [N, C, spatial], too.
PoolGeometry pool_geometry(const Kernel& kernel, const Dims& x, const Dims& y, const PoolWindow& window);

// What the sum over a window is divided by for its mean.
float pool_divisor(bool include_pad, const Span& depth, const Span& height, const Span& width);

// y = max over each window, and where it was: the flat position in x, or with `column_major` (ONNX's storage_order=1)
// that with the spatial dimensions counted first-fastest. The first of equal values wins; NaN wins over numbers.
class MaxPool final : public Kernel {
  public:
    // `with_indices`: every run computes indices. Otherwise, runs without them may be faster.
    MaxPool(Dims x, Dims y, const PoolWindow& window, bool column_major, bool with_indices, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::string implementation() const override;

  private:
    std::size_t row_bytes() const;

    PoolGeometry geometry_;
    bool column_major_;
    std::shared_ptr<const VectorPool> vectors_;  // computes maxima without indices, if it can
};

// dx[index] += dy over all windows; indices as MaxPool writes them, row-major. Throws NativeError for an index that
// lies outside the plane of its window.
class MaxPoolGrad final : public Kernel {
  public:
    MaxPoolGrad(Dims dy, Dims dx, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
};

// y = mean over each window: of the elements inside x, or with `include_pad` of those inside x and its padding.
class AveragePool final : public Kernel {
  public:
    AveragePool(Dims x, Dims y, const PoolWindow& window, bool include_pad, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::string implementation() const override;

  private:
    PoolGeometry geometry_;
    bool include_pad_;
    std::shared_ptr<const VectorPool> vectors_;  // computes the means, if it can
};

// y = (sum of |x|^p)^(1/p) over each window; the padding adds nothing.
class LpPool final : public Kernel {
  public:
    LpPool(Dims x, Dims y, const PoolWindow& window, std::int64_t p, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    template <typename Power, typename Root>
    void run_with(const float* x, float* y, Power power, Root root) const;

    PoolGeometry geometry_;
    std::int64_t p_;
};

// dx from dy: the gradient of AveragePool.
class AveragePoolGrad final : public Kernel {
  public:
    AveragePoolGrad(Dims dy, Dims dx, const PoolWindow& window, bool include_pad, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    std::size_t row_bytes() const;

    PoolGeometry geometry_;
    bool include_pad_;
};

// Pools of [N, *spatial, C]; the shapes are given as [N, C, *spatial].
enum class PoolMode : std::uint8_t { maximum, mean, mean_with_padding };

std::unique_ptr<Kernel> make_channels_last_pool(const Dims& x, const Dims& y, const PoolWindow& window, PoolMode mode,
                                                int threads);
// The maximum of bytes: int8 or uint8.
std::unique_ptr<Kernel> make_byte_max_pool(const Dims& x, const Dims& y, const PoolWindow& window, ElementType type,
                                           int threads);

}  // namespace graphkit
