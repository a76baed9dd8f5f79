// Depthwise convolution of data with the channels last and its gradients: float32, one filter for each channel, one to
// three spatial dimensions. Results do not depend on the number of threads.
#pragma once

#include "kernels/pool/pool.h"
#include "runtime/isa.h"

namespace graphkit {

// Rows of channels that `count` results side by side are made of: result i at out + i * out_step sums
// in[i * step + offsets[t]] * w[numbers[t] * channels] over the taps.
struct DepthwiseRun {
    const std::int64_t* offsets;
    const std::int64_t* numbers;
    std::int64_t taps;
    // Rows of the input that the next run will add, from where this one reads the first of its windows on.
    const std::int64_t* ahead;
    std::int64_t ahead_count;
    std::int64_t count;
    std::int64_t step;
    std::int64_t out_step;
    std::int64_t channels;
};

struct DepthwiseFunctions {
    void (*correlate)(const DepthwiseRun& run, const float* in, const float* w, float* out);
    // w[numbers[t]] += in[i * step + offsets[t]] * out[i * out_step] over the run.
    void (*add_products)(const DepthwiseRun& run, const float* in, const float* out, float* w);
};

GRAPHKIT_ISA_TABLE(DepthwiseFunctions, depthwise_functions);

// Which elements of the input, times which elements of the filter, each element of the output sums.
class DepthwisePlan {
  public:
    DepthwisePlan() = default;
    // Results are the windows of a convolution, or with `transposed` the elements that the windows lie on.
    DepthwisePlan(const PoolGeometry& geometry, bool transposed);

    std::int64_t lines() const { return output_[0] * output_[1]; }  // of one image's output
    std::int64_t input_size() const { return input_[0] * input_[1] * input_[2]; }
    std::int64_t width() const { return output_[2]; }

    // Calls body(run, first result of the run) for all runs of a line.
    template <typename Body>
    void for_each_run(std::int64_t line, std::int64_t channels, Body&& body) const;

  private:
    struct Tap {
        std::int64_t from;
        std::int64_t element;
    };
    using Taps = std::vector<Tap>;
    struct Run {
        std::int64_t first;
        std::int64_t count;
        Taps taps;  // of the first result; those of the next ones lie `step_` further each
    };

    bool continues(const Run& run, const Taps& taps) const;

    std::vector<Taps> taps_[3];  // along each axis, by place in the output
    std::vector<Run> runs_;      // along the last axis
    std::int64_t input_[3] = {1, 1, 1};
    std::int64_t output_[3] = {1, 1, 1};
    std::int64_t kernel_[3] = {1, 1, 1};
    std::int64_t step_ = 1;
    std::int64_t out_step_ = 1;
};

// What the kernels here share; shapes are given as [N, C, ...], filters are [C, 1, kernel].
class Depthwise : public Kernel {
  protected:
    Depthwise(const char* name, const Dims& x, const Dims& y, const PoolWindow& window, bool transposed, int threads);
    void correlate(const float* in, const float* w, float* out, std::byte* scratch) const;
    std::size_t filter_bytes() const;

    Dims x_, y_, w_;  // as arrays
    DepthwisePlan plan_;
    std::int64_t batch_;
    std::int64_t channels_;
    std::int64_t taps_;
    const DepthwiseFunctions& functions_;
};

// y from x and w.
class DepthwiseConvolution final : public Depthwise {
  public:
    DepthwiseConvolution(Dims x, Dims y, const PoolWindow& window, int threads);
    std::size_t scratch_bytes() const override { return filter_bytes(); }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
};

// dx from dy and w.
class DepthwiseBackwardData final : public Depthwise {
  public:
    DepthwiseBackwardData(Dims dy, Dims dx, const PoolWindow& window, int threads);
    std::size_t scratch_bytes() const override { return filter_bytes(); }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
};

// dw from x and dy. Sums over a constant number of parts of the lines are added in order.
class DepthwiseBackwardWeights final : public Depthwise {
  public:
    DepthwiseBackwardWeights(Dims x, Dims dy, const PoolWindow& window, int threads);
    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    std::int64_t parts_ = 1;
};

}  // namespace graphkit
