// Pooling of rows in vectors. The rows that a row of windows reads are first combined into one padded row, element by
// element; windows side by side then read it without branches.
#pragma once

#include <memory>
#include <vector>

#include "kernels/pool/padded_table.h"
#include "kernels/pool/pool.h"

namespace graphkit {

// Maxima, or means, of the windows of float32 planes. NaN wins over numbers. It keeps no reference to the geometry that
// it is made from.
class PaddedPool {
  public:
    // Null if there are no windows, if the stride along rows is large, or if padded rows would be much larger than
    // those of the input.
    static std::shared_ptr<const PaddedPool> maximum(const PoolGeometry& geometry);
    static std::shared_ptr<const PaddedPool> mean(const PoolGeometry& geometry, bool include_pad);

    PaddedPool(const PaddedPool&) = delete;
    PaddedPool& operator=(const PaddedPool&) = delete;

    void run(int threads, const float* x, float* y) const;

  private:
    // The positions of the input that a window reads along depth or height: `count` from `first` on, a dilation apart.
    using Reach = PaddedHeights;

    PaddedPool(const PoolGeometry& geometry, bool mean);

    bool lay_out_rows(const PoolGeometry& g);
    void add_divisors(const PoolGeometry& g, bool include_pad);
    void run_rows(std::int64_t depth, std::int64_t first, std::int64_t last, const float* plane, float* y,
                  float* padded) const;

    const PaddedPoolFunctions& functions_;
    bool mean_;
    std::int64_t planes_;
    std::int64_t input_[3];
    std::int64_t dilation_[3];
    std::int64_t output_size_;
    std::int64_t most_rows_ = 1;     // that a window reads
    std::vector<Reach> reaches_[2];  // of each window along depth and height
    std::vector<std::int64_t> offsets_;
    std::vector<PaddedPhase> phases_;
    PaddedLayout layout_{};
    std::vector<float> divisors_;
    std::vector<std::int64_t> divisor_rows_;
};

}  // namespace graphkit
