// Kernels whose output is a regular view of the input, or the other way round.
#pragma once

#include "runtime/kernel.h"
#include "primitives/strided_copy.h"

namespace graphkit {

// y, in row-major order, = the elements x[offset + i . strides] for all indices i below `sizes`: Transpose, Slice,
// Expand, Tile, DepthToSpace, SpaceToDepth. Any element type. Throws NativeError when the view leaves x or has not as
// many elements as y.
class StridedView final : public Kernel {
  public:
    StridedView(std::string name, Dims x, Dims y, const Dims& sizes, const Dims& strides, std::int64_t offset,
                ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    StridedCopy copy_;
    std::int64_t offset_;  // bytes
};

// y[offset + i . strides] = x[i], and 0 elsewhere: the transpose of a slice. The same errors.
class StridedPlacement final : public Kernel {
  public:
    StridedPlacement(std::string name, Dims x, Dims y, const Dims& strides, std::int64_t offset, ElementType type,
                     int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    StridedCopy copy_;
    std::int64_t offset_;
    bool whole_;  // nothing of y stays 0
};

}  // namespace graphkit
