// Max pooling with indices, average pooling, and their gradients: float32, one to three spatial dimensions. One thread
// computes a whole plane (one channel of one image), so results do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "runtime/kernel.h"
#include "runtime/recipe.h"

namespace graphkit {

struct PoolWindow {
    Dims kernel;
    Dims strides;
    Dims dilations;
    Dims pads_begin;
    Dims pads_end;
};

template <>
struct RecipeFields<PoolWindow> {
    static auto of(PoolWindow& w) { return std::tie(w.kernel, w.strides, w.dilations, w.pads_begin, w.pads_end); }
    static void check(const PoolWindow& w) {
        const std::size_t axes = w.kernel.size();
        if (axes > 3 || w.strides.size() != axes || w.dilations.size() != axes || w.pads_begin.size() != axes ||
            w.pads_end.size() != axes) {
            throw BadRecipe("a window has several numbers of axes");
        }
    }
};

// The kernel positions of a window along one axis that are inside of the input, [first, last), and the end of those
// inside of the padded input. Kernel position 0 is at `start` of the input.
struct Span {
    std::int64_t start;
    std::int64_t first;
    std::int64_t last;
    std::int64_t padded;

    std::int64_t count() const { return last - first; }
};

// The windows [first, last) of a row for which one element of the kernel row is inside of the input: for window w, at
// position w * stride + offset.
struct Tap {
    std::int64_t first;
    std::int64_t last;
    std::int64_t offset;
};

// The spatial part of a pooling, with leading axes of size 1 up to three dimensions. The innermost loops run over the
// windows of a row, so that they have no branches; each window reads its elements in row-major order.
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
    // Largest number of kernel elements inside of the input; a kernel may be larger than the input.
    std::int64_t most_inside() const {
        return std::min(kernel[0], input[0]) * std::min(kernel[1], input[1]) * std::min(kernel[2], input[2]);
    }
};

class VectorPool;

// Computes the geometry. Throws NativeError if the shapes, [N, C, spatial], do not match.
PoolGeometry pool_geometry(const Kernel& kernel, const Dims& x, const Dims& y, const PoolWindow& window);

// Returns the divisor of the mean over a window.
float pool_divisor(bool include_pad, const Span& depth, const Span& height, const Span& width);

// y = the maximum of each window, and its position: the flat index in x or, with `column_major` (ONNX's
// storage_order=1), the index with the first spatial dimension varying fastest. The first of equal values counts. If an
// element is NaN, so is the maximum.
class MaxPool final : public Kernel {
  public:
    // `with_indices`: every run computes indices. If false, runs without them may be faster.
    MaxPool(Dims x, Dims y, const PoolWindow& window, bool column_major, bool with_indices, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::string implementation() const override;

  private:
    std::size_t row_bytes() const;

    PoolGeometry geometry_;
    bool column_major_;
    std::shared_ptr<const VectorPool> vectors_;  // computes maxima without indices; null if it cannot
};

// dx[index] += dy for all windows. Indices are those that MaxPool writes, row-major. Throws NativeError for an index
// outside of the plane of its window.
class MaxPoolGrad final : public Kernel {
  public:
    MaxPoolGrad(Dims dy, Dims dx, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
};

// y = the mean of each window: over its elements inside of x or, with `include_pad`, over those inside of x and its
// padding.
class AveragePool final : public Kernel {
  public:
    AveragePool(Dims x, Dims y, const PoolWindow& window, bool include_pad, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::string implementation() const override;

  private:
    PoolGeometry geometry_;
    bool include_pad_;
    std::shared_ptr<const VectorPool> vectors_;  // computes the means; null if it cannot
};

// y = (sum of |x|^p)^(1/p) for each window; padding adds nothing.
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

// Pools of [N, *spatial, C] arrays; shapes are given as [N, C, *spatial].
enum class PoolMode : std::uint8_t { maximum, mean, mean_with_padding };

std::unique_ptr<Kernel> make_channels_last_pool(const Dims& x, const Dims& y, const PoolWindow& window, PoolMode mode,
                                                int threads);
// Max pooling of float64, int8 or uint8 in [N, C, spatial], without indices.
std::unique_ptr<Kernel> make_plain_max_pool(const Dims& x, const Dims& y, const PoolWindow& window, ElementType type,
                                            int threads);
// Max pooling of int8 or uint8 in [N, spatial, C].
std::unique_ptr<Kernel> make_byte_max_pool(const Dims& x, const Dims& y, const PoolWindow& window, ElementType type,
                                           int threads);

}  // namespace graphkit
