// Convolution, its two gradients, and transposed convolution: one to three spatial dimensions.
#pragma once

#include "onednn/onednn.h"
#include "kernels/conv/window_products.h"
#include "kernels/conv/window.h"

namespace graphkit {

struct ConvolutionOptions {
    Epilogue epilogue;
    bool pack_weights = false;  // the weights are constant: they come in oneDNN's layout
    ElementType type = ElementType::f32;  // of all operands and the result: f32 or bf16
    bool channels_last = false;  // x, y and residual lie in memory as [N, spatial, C]
    bool deterministic = false;  // the same bits for any number of threads
};

// One way to have the library compute a convolution.
struct Way {
    bool last = false;  // in memory with the channels last, else in the layout that the library likes best
    bool fused = true;  // the epilogue on the way, else in a pass of its own
    Accepts accepts = any_name;
};

class ConvolutionKernel : public LibraryKernel {
  protected:
    using LibraryKernel::LibraryKernel;
    // Calls `prepare` with one way after the other until there are implementations. Arrays lie in memory with the
    // channels last, or not. Throws dnnl::error of status unimplemented.
    void choose_way(bool last, const Epilogue& epilogue, const std::function<void(const Way&)>& prepare);
};

// y = epilogue(conv(x, w) + bias). x [N, C, spatial], w [M, C/groups, kernel], bias [M], y and residual [N, M, spatial];
// the shapes given are these in any layout. The residual is the last input.
// All classes here throw NativeError for shapes that do not fit, Unsupported for an empty kernel or channel dimension.
class Convolution final : public ConvolutionKernel {
  public:
    Convolution(Dims x, Dims w, Dims y, const Window& window, const ConvolutionOptions& options, int threads);
    std::vector<std::pair<int, int>> inplace() const override { return residual_inplace(); }

  private:
    void prepare(const Dims& x, const Dims& w, const Dims& y, const Window& window, const ConvolutionOptions& options,
                 const Way& way);
};

struct GradientOptions {
    bool pack_weights = false;  // the weights are constant: they come in oneDNN's layout
    bool channels_last = false;  // x, dx and dy lie in memory as [N, spatial, C]
    ElementType type = ElementType::f32;  // of x, w, dy and dx: f32 or bf16
    bool deterministic = false;  // the same bits for any number of threads
};

// dx from dy and w: the gradient of Convolution in x.
class ConvolutionBackwardData final : public ConvolutionKernel {
  public:
    ConvolutionBackwardData(Dims dy, Dims w, Dims dx, const Window& window, const GradientOptions& options,
                            int threads);

  private:
    void prepare(const Dims& dy, const Dims& w, const Dims& dx, const Window& window, const GradientOptions& options,
                 const Way& way);
};

// dw (and the bias gradient, when asked) from x and dy. The results are float32 for operands of any type.
class ConvolutionBackwardWeights final : public ConvolutionKernel {
  public:
    ConvolutionBackwardWeights(Dims x, Dims dy, Dims dw, const Window& window, bool bias,
                               const GradientOptions& options, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::string implementation() const override;

  private:
    void as_product(std::int64_t positions, const Dims& dw, ElementType type);
    void as_convolution(const Dims& x, const Dims& dy, const Dims& dw, const Window& window, bool last,
                        ElementType type);

    std::optional<WindowProducts> products_;
};

// y = epilogue(conv_transpose(x, w) + bias). x [N, C, spatial], w [C, M/groups, kernel], y [N, M, spatial].
class Deconvolution final : public ConvolutionKernel {
  public:
    Deconvolution(Dims x, Dims w, Dims y, const Window& window, const ConvolutionOptions& options, int threads);

  private:
    void prepare(const Dims& x, const Dims& w, const Dims& y, const Window& window, const ConvolutionOptions& options,
                 const Way& way);
};

}  // namespace graphkit
