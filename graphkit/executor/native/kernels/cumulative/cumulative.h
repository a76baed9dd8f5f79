// Running totals along an axis: CumSum, CumProd, and the first-order linear recurrence.
#pragma once

#include "primitives/elements.h"
#include "runtime/kernel.h"

namespace graphkit {

// Sums, or products with `product`, of the elements up to each position. exclusive: without the element itself;
// reverse: from the end. Floats and integers of 32 and 64 bits; half floats are computed in float. Each total is in the
// order of the axis, for any number of threads.
class Cumulative final : public Kernel {
  public:
    Cumulative(Dims x, std::int64_t axis, bool product, bool exclusive, bool reverse, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    AroundAxis around_;
    bool product_;
    bool exclusive_;
    bool reverse_;
};

// h[t] = a[t] * h[t - 1] + b[t] along an axis from h = 0, or from the end with `reverse`; float32 and float64.
class LinearRecurrence final : public Kernel {
  public:
    LinearRecurrence(Dims a, std::int64_t axis, bool reverse, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<std::pair<int, int>> inplace() const override { return {{0, 0}, {1, 0}}; }

  private:
    AroundAxis around_;
    bool reverse_;
};

}  // namespace graphkit
