// Normalisation with statistics of rows, channels, groups of channels, and neighbouring channels.
//
// Computed in float, or in double for double. One thread computes whole rows or channels, so that results do not depend
// on the number of threads.
#pragma once

#include <optional>

#include "primitives/row_table.h"
#include "runtime/kernel.h"

namespace graphkit {

// A tensor that broadcasts to all rows alike. A row consists of the axes of x from `axis` on.
class RowVector {
  public:
    RowVector() = default;
    // Throws Unsupported if the broadcast tensor would differ between rows.
    RowVector(const Kernel& kernel, const Dims& x, std::size_t axis, const Dims& shape);

    bool whole() const { return whole_; }  // one element for each element of a row
    // Returns the offsets of the tensor's elements for a row.
    std::vector<std::int64_t> offsets() const;

  private:
    bool whole_ = true;
    Dims sizes_;
    Dims strides_;
};

// LayerNormalization: y = (x - mean) * r * scale + bias over the axes from `axis` on, r = 1 / sqrt(var + epsilon).
// RMSNormalization: mean 0, no bias, one output. mean and r have the type `stash`, "float32" or "float64".
class LayerNorm : public Kernel {
  public:
    // If `y` is false, only the statistics are outputs.
    LayerNorm(const Dims& x, std::int64_t axis, const Dims& scale, const std::optional<Dims>& bias,
              const std::string& type, double epsilon, bool about_mean, const std::string& stash, bool y, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<std::pair<int, int>> inplace() const override { return {{0, 0}}; }

  private:
    template <typename T>
    void run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const;

    ElementType type_;
    ElementType stash_ = ElementType::f32;
    bool about_mean_;
    double epsilon_;
    std::int64_t rows_ = 1;
    std::int64_t size_ = 1;
    bool expand_scale_ = false;
    bool expand_bias_ = false;
    bool discard_;  // y is not an output: each row of it is written to working memory
    std::vector<std::int64_t> scale_offsets_;
    std::vector<std::int64_t> bias_offsets_;
};

// GroupNormalization; with as many groups as channels, InstanceNormalization. x: [N, C, *spatial]; scale, bias: [C].
class GroupNorm : public Kernel {
  public:
    GroupNorm(const Dims& x, std::int64_t groups, const std::string& type, double epsilon, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<std::pair<int, int>> inplace() const override { return {{0, 0}}; }

  private:
    template <typename T>
    void run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const;

    ElementType type_;
    double epsilon_;
    std::int64_t rows_, channels_, per_group_, inner_;
};

// x as [images, channels, inner]; channels are the second axis.
struct ChannelGeometry {
    std::int64_t images = 1;
    std::int64_t channels = 1;
    std::int64_t inner = 1;

    ChannelGeometry() = default;
    explicit ChannelGeometry(const Dims& x);
    std::int64_t count() const { return images * inner; }
    std::int64_t offset(std::int64_t image, std::int64_t channel) const { return (image * channels + channel) * inner; }
};

// BatchNormalization. Inference: y = (x - mean) / sqrt(var + epsilon) * scale + b with the given mean and var.
// Training: with the mean and var of x. The running statistics, given * momentum + those of x * (1 - momentum), are two
// further outputs.
class BatchNorm : public Kernel {
  public:
    BatchNorm(const Dims& x, const std::string& type, const std::string& scale_type, const std::string& mean_type,
              double epsilon, bool training, double momentum, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<std::pair<int, int>> inplace() const override { return {{0, 0}}; }

  private:
    template <typename T>
    void run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const;

    ElementType type_, scale_type_, mean_type_;
    double epsilon_, momentum_;
    bool training_;
    ChannelGeometry geometry_;
};

// y = x / (bias + alpha / size * s) ^ beta, where s is the sum of squares over `size` neighbouring channels, (size - 1)
// / 2 of them before.
class LocalResponseNorm : public Kernel {
  public:
    LocalResponseNorm(const Dims& x, const std::string& type, std::int64_t size, double alpha, double beta, double bias,
                      int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    template <typename T>
    void run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const;

    ElementType type_;
    std::int64_t size_;
    double alpha_, beta_, bias_;
    ChannelGeometry geometry_;
    std::int64_t tile_;
};

}  // namespace graphkit
