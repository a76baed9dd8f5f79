// Convolution, its two gradients, and transposed convolution: float32, one to three spatial dimensions.
#pragma once

#include "onednn.h"

namespace graphkit {

// ONNX's attributes, complete: one entry for each spatial dimension, dilation 1 for neighbours.
struct Window {
    Dims strides;
    Dims dilations;
    Dims pads_begin;
    Dims pads_end;
    std::int64_t groups = 1;
};

struct ConvolutionOptions {
    bool bias = false;
    std::vector<PostOp> post_ops;
    bool pack_weights = false;  // the weights are constant: keep them in oneDNN's layout
};

class ConvolutionStep : public Step {
  public:
    using Step::Step;
    int packable() const override { return operation_.packable(); }
    std::unique_ptr<Packed> pack(const void* array) const override;
    std::string implementation() const override { return empty_ ? "empty" : operation_.implementation(); }

  protected:
    void execute(Team& team, std::span<const void* const> inputs, std::span<void* const> outputs,
                 const Packed* packed) override;

    Operation operation_;
    bool empty_ = false;  // an operand has no elements: every output is zero
};

// y = conv(x, w) + bias, then post_ops. x [N, C, spatial], w [M, C/groups, kernel], bias [M], y [N, M, spatial].
// All classes here throw NativeError for shapes that do not fit, Unsupported for an empty kernel or channel dimension.
class Convolution final : public ConvolutionStep {
  public:
    Convolution(Dims x, Dims w, Dims y, const Window& window, const ConvolutionOptions& options, int threads);
};

// dx from dy and w: the gradient of Convolution in x.
class ConvolutionBackwardData final : public ConvolutionStep {
  public:
    ConvolutionBackwardData(Dims dy, Dims w, Dims dx, const Window& window, bool pack_weights, int threads);
};

// dw (and the bias gradient, when asked) from x and dy.
class ConvolutionBackwardWeights final : public ConvolutionStep {
  public:
    ConvolutionBackwardWeights(Dims x, Dims dy, Dims dw, const Window& window, bool bias, int threads);
};

// y = conv_transpose(x, w) + bias, then post_ops. x [N, C, spatial], w [C, M/groups, kernel], y [N, M, spatial].
class Deconvolution final : public ConvolutionStep {
  public:
    Deconvolution(Dims x, Dims w, Dims y, const Window& window, const ConvolutionOptions& options, int threads);
};

}  // namespace graphkit
