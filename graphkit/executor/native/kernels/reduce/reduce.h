// Reductions over any axes.
#pragma once

#include <memory>

#include "runtime/kernel.h"

namespace graphkit {

// Reduce<op>: Sum, Mean, Max, Min, Prod, L1, L2, SumSquare, LogSum, LogSumExp. `y` is the shape of the result, with or
// without the reduced axes. Half floats are accumulated in float, integers in 64 bits.
class Reduce : public Kernel {
  public:
    Reduce(const std::string& op, const Dims& x, const Dims& axes, const Dims& y, const std::string& type, int threads);
    ~Reduce() override;

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

    struct Implementation;

  private:
    std::unique_ptr<Implementation> implementation_;
    bool all_true_ = false;  // the least of no bool
};

}  // namespace graphkit
