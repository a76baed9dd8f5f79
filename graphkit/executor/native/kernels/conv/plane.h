// Base of convolutions with one group over one or two spatial dimensions, which are all treated as two-dimensional.
#pragma once

#include <memory>

#include "kernels/conv/following.h"
#include "kernels/conv/window.h"
#include "runtime/kernel.h"

namespace graphkit {

// With one spatial dimension, the first axis has size 1.
struct ConvPlane {
    std::int64_t images, height, width, channels, out_height, out_width, filters;
    std::int64_t kernel[2], strides[2], dilations[2], begin[2], end[2];

    // Number of elements that this many adjacent windows cover along an axis.
    std::int64_t span(int axis, std::int64_t windows) const {
        return (windows - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1;
    }
    bool pads() const { return begin[0] + begin[1] + end[0] + end[1] > 0; }

    // Whether `of` supports these shapes, [N, C, spatial] and [M, C, kernel], provided that they match each other.
    static bool covers(const Dims& x, const Dims& w, const Dims& y, const Window& window);
    // Throws NativeError, which names the kernel, if the shapes do not match each other.
    static ConvPlane of(const Kernel& kernel, const Dims& x, const Dims& w, const Dims& y, const Window& window);
};

// y = epilogue(conv(x, w) + bias), computed in parts. Constant weights may come packed, the residual is the last input,
// and each thread has memory for a copy of what its part reads.
class PlaneConvolution : public Kernel {
  public:
    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<int> packed_inputs() const override { return packed_ ? std::vector{1} : std::vector<int>{}; }
    std::size_t packed_bytes(int input) const override;
    void pack(int input, const void* plain, void* packed) const override;
    std::string implementation() const override { return method_ + ":" + isa_; }

  protected:
    // Some lines of the result of an image, or a part of one line.
    struct Part {
        std::int64_t image, row, rows, column, columns;
    };
    struct Operands {
        const float* x;
        const float* weights;  // arranged
        bool sound;            // whether all weights are finite, or need not be
        float* y;
        TiledEpilogue epilogue;
    };

    // The layouts of inputs and outputs are not changed. Throws Unsupported for shapes that ConvPlane does not cover
    // and for a scaled product, NativeError for shapes that do not match.
    PlaneConvolution(const char* name, const char* method, const Dims& x, const Dims& w, const Dims& y,
                     const Window& window, const Epilogue& epilogue, bool pack_weights, int threads);

    virtual std::int64_t parts() const = 0;
    virtual double part_nanoseconds() const = 0;
    virtual std::size_t arranged_floats() const = 0;
    virtual std::size_t copy_bytes() const = 0;
    // Arranges the weights, and returns whether they are sound.
    virtual bool arrange(const float* w, float* to) const = 0;
    virtual void compute_parts(const Operands& given, std::int64_t begin, std::int64_t end, float* copied) const = 0;

    ConvPlane plane_{};

  private:
    std::size_t weight_bytes() const;
    std::size_t copies_bytes() const;
    void arrange_behind_flag(const void* w, std::byte* to) const;

    std::string method_, isa_;
    bool packed_;
    Following following_;
};

// Kernels for few channels, and for one filter for each channel. All arrays have the standard order of axes.
std::unique_ptr<Kernel> shallow_convolution(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                                            const Epilogue& epilogue, bool pack_weights, int threads);
std::unique_ptr<Kernel> depthwise_planes(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                                         const Epilogue& epilogue, bool pack_weights, int threads);

}  // namespace graphkit
