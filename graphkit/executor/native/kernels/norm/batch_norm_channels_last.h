// Batch normalisation in training of data with the channels last, [rows, C] in memory: float32.
//
// Sums go over a constant partition of the rows, in float over few rows and in double beyond, so that results do not
// depend on the number of threads.
#pragma once

#include "runtime/isa.h"
#include "runtime/kernel.h"

namespace graphkit {

// A block of rows, and what is known of each channel. Pointers that do not apply are null.
struct NormRows {
    const float* x;
    const float* mean;
    const float* factor;  // scale / deviation
    const float* bias;
    std::int64_t rows;
    std::int64_t channels;
};

// Which results of a normalisation passed its activation: those above `above`, but not above `upto`, and NaN.
struct NormMask {
    bool used = false;
    float above = 0;
    float upto = 0;
};

struct BatchNormFunctions {
    // sums += x - shift and squares += (x - shift)^2 over the rows.
    void (*add_moments)(const float* x, std::int64_t rows, std::int64_t channels, const float* shift, float* sums,
                        float* squares);
    // y = (x - mean) * factor + bias + residual, limited.
    void (*normalise)(const NormRows& block, const float* residual, float low, float high, float* y);
    // g = (dy + addend) where the mask passes; sums += g and dots += g * (x - mean). `y`, where it is there, is what
    // the mask looks at. g is written where there is a place for it.
    void (*add_gradients)(const NormRows& block, const float* dy, const float* addend, const float* y,
                          const NormMask& mask, float* g, float* sums, float* dots);
    // dx = a * g + b * (x - mean) + c, with g as above.
    void (*gradient)(const NormRows& block, const float* dy, const float* addend, const float* y, const NormMask& mask,
                     const float* a, const float* b, const float* c, float* dx);
};

GRAPHKIT_ISA_TABLE(BatchNormFunctions, batch_norm_functions);

// The rows in parts that do not depend on the number of threads.
struct NormPartition {
    std::int64_t rows = 0;
    std::int64_t channels = 0;
    std::int64_t parts = 1;

    NormPartition() = default;
    explicit NormPartition(const Dims& x);
    std::int64_t begin(std::int64_t part) const { return rows * part / parts; }
    // Working memory for two sums over each channel in each part.
    std::size_t bytes() const;
};

// y = limit((x - mean) / sqrt(var + epsilon) * scale + b + residual) with the statistics of x, which go out as the mean
// and 1 / sqrt(var + epsilon); and the running ones, the given * momentum + those of x * (1 - momentum).
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

// dx, dscale, db and the gradient of the residual from dy + addend, x, scale, b, the mean and the inverse deviation;
// with `from_y` the mask looks at the forward result, else at what is computed from x again.
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
