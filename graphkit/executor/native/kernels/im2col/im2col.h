// Sliding blocks as columns of a matrix: Im2Col copies them out of an image, Col2Im adds them up to one.
#pragma once

#include "runtime/kernel.h"

namespace graphkit {

// Where a block lies at each of its positions, along one to three axes; padded in front to three.
struct BlockGeometry {
    std::int64_t image[3] = {1, 1, 1};
    std::int64_t block[3] = {1, 1, 1};
    std::int64_t positions[3] = {1, 1, 1};
    std::int64_t strides[3] = {1, 1, 1};
    std::int64_t dilations[3] = {1, 1, 1};
    std::int64_t begin[3] = {0, 0, 0};  // padding in front

    BlockGeometry() = default;
    // One entry per axis in each list; throws NativeError where they differ in length, Unsupported for other ranks.
    BlockGeometry(const Kernel& kernel, const Dims& image, const Dims& block, const Dims& positions,
                  const Dims& strides, const Dims& dilations, const Dims& begin);

    std::int64_t image_size() const { return image[0] * image[1] * image[2]; }
    std::int64_t block_size() const { return block[0] * block[1] * block[2]; }
    std::int64_t count() const { return positions[0] * positions[1] * positions[2]; }
};

// x: [N, C, *image] -> y: [N, C * block, positions], or with `add` the other way round, elements that meet added and
// those in the padding dropped. float32, float64 and integers of 32 and 64 bits, which wrap around.
class Columns final : public Kernel {
  public:
    Columns(bool add, std::int64_t batch, std::int64_t channels, const Dims& image, const Dims& block,
            const Dims& positions, const Dims& strides, const Dims& dilations, const Dims& begin, ElementType type,
            int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    template <typename T>
    void run_as(const T* from, T* to) const;

    bool add_;
    std::int64_t planes_;
    BlockGeometry geometry_;
};

}  // namespace graphkit
