// The epilogue of a convolution by graphkit's own code. The convolution adds the bias and clamps its results itself;
// for other activations, a second pass applies them and adds the residual.
#pragma once

#include <memory>

#include "kernels/conv/tiled_table.h"
#include "kernels/pointwise/epilogue.h"
#include "runtime/kernel.h"

namespace graphkit {

class Following {
  public:
    Following() = default;
    // For results [results, filters], and an epilogue without scaling.
    Following(const Epilogue& epilogue, std::int64_t results, std::int64_t filters, int threads);

    // The part of the epilogue that the convolution applies to each result.
    TiledEpilogue on_the_way(const void* bias, const void* residual) const;

    std::size_t scratch_bytes() const { return product_bytes_ + (pass_ ? pass_->scratch_bytes() : 0); }
    // Where the convolution writes: y, or memory in `scratch` that the pass reads.
    float* product(void* y, std::byte* scratch) const;
    void pass(const void* product, const void* residual, void* y, std::byte* scratch) const;

  private:
    TiledEpilogue limits_;
    std::unique_ptr<Kernel> pass_;
    std::size_t product_bytes_ = 0;  // of a product that cannot be in y, because the residual is
};

}  // namespace graphkit
