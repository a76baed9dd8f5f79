// What convolutions through oneDNN share: the checks of shapes, and how arrays and pieces lie.
//
// All their kernels throw NativeError for shapes that do not fit, Unsupported for an empty kernel or channel dimension.
#pragma once

#include "kernels/conv/window.h"
#include "onednn/onednn.h"
#include "primitives/partition.h"

namespace graphkit {

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
    // channels last, or not; each result sums over so many `channels`. Throws dnnl::error of status unimplemented.
    void choose_way(bool last, std::int64_t channels, const Epilogue& epilogue,
                    const std::function<void(const Way&)>& prepare);
};

// Dilations as the library counts them: 0 for neighbours.
Dims library_dilations(const Window& window);

// Dimensions of the weights as the library counts them: with a leading group dimension when there are groups.
Dims grouped(const Dims& w, std::int64_t groups);

// Checks everything that the library would not, or would report without saying where. `wide` and `narrow` are the
// data on the two sides: the input and the output of a convolution, the output and the input of a transposed one.
void check_shapes(const Kernel& kernel, const Dims& wide, const Dims& w, const Dims& narrow, const Window& window);

// The shape of an array of [N, C, spatial].
Dims placed(const Dims& dims, bool last);

// Data [N, C, spatial] with the channels last, or as the library likes them best.
dnnl::memory::desc data_layout(const Dims& dims, bool last, ElementType type);

// A result [N, C, spatial] as [outer, channels, inner].
Dims by_channel(const Dims& dims, bool last);

// An array of fewer images; the bytes of one; the products of a convolution with this result.
Dims with_batch(Dims dims, std::int64_t images);
std::size_t image_bytes(const Dims& dims, ElementType type);
double multiply_adds(const Dims& w, const Dims& narrow);

// A piece of some images, of which `from` and `to` have so many bytes each.
Piece piece_of(const Range& images, std::size_t from, std::size_t to);

// The forward primitive that the library asks for where a gradient is prepared.
dnnl::convolution_forward::primitive_desc forward_hint(const Dims& x, const Dims& w, const Dims& y,
                                                       const Window& window, bool last, ElementType type);

}  // namespace graphkit
