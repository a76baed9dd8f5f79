// CumSum: sums of the elements up to each position along an axis.
#pragma once

#include "elements.h"
#include "kernel.h"

namespace graphkit {

// exclusive: without the element itself; reverse: from the end. Floats and integers of 32 and 64 bits; half floats are
// summed in float. Each sum is in the order of the axis, for any number of threads.
class CumSum final : public Kernel {
  public:
    CumSum(Dims x, std::int64_t axis, bool exclusive, bool reverse, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    AroundAxis around_;
    bool exclusive_;
    bool reverse_;
};

}  // namespace graphkit
