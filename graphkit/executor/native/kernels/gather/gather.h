// Elements and slices taken by index. Any element type; indices outside their axis throw NativeError from run.
#pragma once

#include "primitives/indices.h"
#include "runtime/kernel.h"

namespace graphkit {

// x: [*a, n, *b] with n at `axis`; y: [*a, *indices, *b]. Indices are int32 or int64.
class Gather final : public Kernel {
  public:
    Gather(Dims x, Dims indices, std::int64_t axis, ElementType type, ElementType index_type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    AroundAxis around_;
    std::size_t axis_;
};

// y[i, j, ...] = x with `axis` at indices[i, j, ...]; other axes of the indices are at most as long as x's.
class GatherElements final : public Kernel {
  public:
    GatherElements(Dims x, Dims indices, std::int64_t axis, ElementType type, ElementType index_type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    std::size_t axis_;
    Dims strides_;  // of x
};

// x: [*batch, *a, *b]; indices: int64 [*batch, *c, len(a)]; y: [*batch, *c, *b].
class GatherND final : public Kernel {
  public:
    GatherND(Dims x, Dims indices, std::int64_t batch_dims, ElementType type, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    IndexTuples tuples_;
};

// The first lengths[b] steps of batch b in reverse order, the others in place. One of the two axes is 0, the other 1.
// Throws NativeError from run for a length that is negative or exceeds the time axis.
class ReverseSequence final : public Kernel {
  public:
    ReverseSequence(Dims x, bool batch_first, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    bool batch_first_;
};

}  // namespace graphkit
