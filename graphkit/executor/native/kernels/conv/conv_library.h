// Checks of shapes, and memory layouts of arrays and parts, for all convolutions that run through oneDNN.
//
// All these kernels throw NativeError for shapes that do not match, and Unsupported for an empty kernel or channel
// dimension.
#pragma once

#include "kernels/conv/window.h"
#include "onednn/onednn.h"
#include "primitives/partition.h"

namespace graphkit {

// A way in which the library can compute a convolution.
struct Way {
    bool last = false;  // channels last in memory; else the layout that the library prefers
    bool fused = true;  // the library applies the epilogue; else a separate pass does
    Accepts accepts = any_name;
};

class ConvolutionKernel : public LibraryKernel {
  protected:
    using LibraryKernel::LibraryKernel;
    // Calls `prepare` with one way after the other until the library has an implementation. `last`: arrays have the
    // channels last in memory. `channels`: channels that each result sums over. Throws dnnl::error of status
    // unimplemented.
    void choose_way(bool last, std::int64_t channels, const Epilogue& epilogue,
                    const std::function<void(const Way&)>& prepare);
};

// Dilations as the library counts them: 0 if the elements of a window are adjacent.
Dims library_dilations(const Window& window);

// Dimensions of the weights for the library: with a leading group dimension if there is more than one group.
Dims grouped(const Dims& w, std::int64_t groups);

// Checks what the library does not check, or reports without naming the operand. `wide` and `narrow` are the data on
// both sides: input and output of a convolution, output and input of a transposed convolution.
void check_shapes(const Kernel& kernel, const Dims& wide, const Dims& w, const Dims& narrow, const Window& window);

// The shape in memory of an array [N, C, spatial].
Dims placed(const Dims& dims, bool last);

// The descriptor of data [N, C, spatial]: channels last, or the layout that the library prefers.
dnnl::memory::desc data_layout(const Dims& dims, bool last, ElementType type);

// A result [N, C, spatial] in memory, as [outer, channels, inner].
Dims by_channel(const Dims& dims, bool last);

// with_batch: the shape with another number of images. image_bytes: bytes of one image. multiply_adds: multiply-adds of
// a convolution with the result `narrow`.
Dims with_batch(Dims dims, std::int64_t images);
std::size_t image_bytes(const Dims& dims, ElementType type);
double multiply_adds(const Dims& w, const Dims& narrow);

// A part with these images; an image has `from` bytes in the input and `to` bytes in the output.
Piece piece_of(const Range& images, std::size_t from, std::size_t to);

// The forward primitive that the library requires to prepare a gradient.
dnnl::convolution_forward::primitive_desc forward_hint(const Dims& x, const Dims& w, const Dims& y,
                                                       const Window& window, bool last, ElementType type);

struct LibraryConvolution {
    Epilogue epilogue;
    bool pack_weights = false;            // w is constant: it comes packed in the library's layout
    ElementType type = ElementType::f32;  // of all operands and the result: f32 or bf16
    bool channels_last = false;           // x, y and residual are [N, spatial, C] in memory
    bool deterministic = false;           // equal bits for any number of threads
};

// Convolutions by the library. Shapes are given as [N, C, spatial] for any layout in memory. w of a transposed
// convolution is [C, M / groups, kernel].
std::unique_ptr<Kernel> library_convolution(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                                            const LibraryConvolution& options, int threads);
std::unique_ptr<Kernel> library_deconvolution(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                                              const LibraryConvolution& options, int threads);

}  // namespace graphkit
