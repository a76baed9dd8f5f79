// Batch normalisation in training of channels-last data, [rows, C] in memory: float32.
//
// The rows are divided into parts that depend only on the shape; sums are in float over few rows and in double beyond.
// So results do not depend on the number of threads.
#pragma once

#include "runtime/isa.h"
#include "runtime/kernel.h"

namespace graphkit {

// A block of rows, and data of each channel. Pointers that are not needed are null.
struct NormRows {
    const float* x;
    const float* mean;
    const float* factor;  // scale / deviation
    const float* bias;
    std::int64_t rows;
    std::int64_t channels;
};

// Which results passed the activation that follows a normalisation: those in (above, upto], and NaN.
struct NormMask {
    bool used = false;
    float above = 0;
    float upto = 0;
};

struct BatchNormFunctions {
    // sums += x - shift and squares += (x - shift)^2 over the rows.
    void (*add_moments)(const float* x, std::int64_t rows, std::int64_t channels, const float* shift, float* sums,
                        float* squares);
    // y = (x - mean) * factor + bias + residual, clamped to [low, high].
    void (*normalise)(const NormRows& block, const float* residual, float low, float high, float* y);
    // g = dy + addend where the mask passes, else 0; sums += g and dots += g * (x - mean). The mask tests `y`, or if
    // `y` is null the result computed from x. g is stored if it is not null.
    void (*add_gradients)(const NormRows& block, const float* dy, const float* addend, const float* y,
                          const NormMask& mask, float* g, float* sums, float* dots);
    // dx = a * g + b * (x - mean) + c, with g as in add_gradients.
    void (*gradient)(const NormRows& block, const float* dy, const float* addend, const float* y, const NormMask& mask,
                     const float* a, const float* b, const float* c, float* dx);
};

GRAPHKIT_ISA_TABLE(BatchNormFunctions, batch_norm_functions);

// A division of the rows into parts that does not depend on the number of threads.
struct NormPartition {
    std::int64_t rows = 0;
    std::int64_t channels = 0;
    std::int64_t parts = 1;

    NormPartition() = default;
    explicit NormPartition(const Dims& x);
    std::int64_t begin(std::int64_t part) const { return rows * part / parts; }
    // Bytes of working memory for two sums over each channel in each part.
    std::size_t bytes() const;
};

// y = clamp((x - mean) / sqrt(var + epsilon) * scale + b + residual) with the statistics of x. Further outputs are the
// mean, 1 / sqrt(var + epsilon), and the running statistics: given * momentum + those of x * (1 - momentum).
class ChannelsLastBatchNorm final : public Kernel {
  public:
    ChannelsLastBatchNorm(Dims x, double epsilon, double momentum, float low, float high, bool residual, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<std::pair<int, int>> inplace() const override;

  private:
    double epsilon_, momentum_;
    float low_, high_;
    NormPartition partition_;
    const BatchNormFunctions& functions_;
};

// dx, dscale, db and the gradient of the residual, from dy + addend, x, scale, b, the mean and the inverse deviation.
// With `from_y` the mask tests the forward result, else that result recomputed from x.
class ChannelsLastBatchNormGrad final : public Kernel {
  public:
    ChannelsLastBatchNormGrad(Dims x, const NormMask& mask, bool from_y, bool addend, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<std::pair<int, int>> inplace() const override { return {{0, 0}, {0, 3}, {7, 0}, {7, 3}}; }

  private:
    NormMask mask_;
    NormPartition partition_;
    const BatchNormFunctions& functions_;
};

}  // namespace graphkit
