// What follows a convolution of our own: bias and limits on the way to memory, any other activation in a pass behind
// it, with the residual.
#pragma once

#include <memory>

#include "kernels/conv/tiled_table.h"
#include "kernels/pointwise/epilogue.h"
#include "runtime/kernel.h"

namespace graphkit {

class Following {
  public:
    Following() = default;
    // Of results [results, filters] with an epilogue that scales nothing.
    Following(const Epilogue& epilogue, std::int64_t results, std::int64_t filters, int threads);

    // What the convolution itself applies to each of its results.
    TiledEpilogue on_the_way(const void* bias, const void* residual) const;

    std::size_t scratch_bytes() const { return product_bytes_ + (pass_ ? pass_->scratch_bytes() : 0); }
    // Where the convolution writes: y, or what lies in `scratch` before the pass.
    float* product(void* y, std::byte* scratch) const;
    void pass(const void* product, const void* residual, void* y, std::byte* scratch) const;

  private:
    TiledEpilogue limits_;
    std::unique_ptr<Kernel> pass_;
    std::size_t product_bytes_ = 0;  // of a product that cannot lie in y, because the residual does
};

}  // namespace graphkit
