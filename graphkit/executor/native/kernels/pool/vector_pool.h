// Pooling in vectors: maxima or means of the windows of float32 planes. If an element is NaN, so is the maximum.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "kernels/pool/pool.h"

namespace graphkit {

// Keeps no reference to the geometry from which it is made.
class VectorPool {
  public:
    VectorPool() = default;
    VectorPool(const VectorPool&) = delete;
    VectorPool& operator=(const VectorPool&) = delete;
    virtual ~VectorPool() = default;

    virtual std::string name() const = 0;
    // Bytes of working memory for this number of threads.
    virtual std::size_t scratch_bytes(int threads) const = 0;
    virtual void run(int threads, const float* x, float* y, std::byte* scratch) const = 0;

    // Return the fastest implementation for these windows; null if there is none.
    static std::shared_ptr<const VectorPool> maximum(const PoolGeometry& geometry);
    static std::shared_ptr<const VectorPool> mean(const PoolGeometry& geometry, bool include_pad);
};

}  // namespace graphkit
