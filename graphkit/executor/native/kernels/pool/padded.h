// Pooling along rows in vectors. The input rows that a row of windows reads are first combined into one padded row,
// element by element. Adjacent windows then read the padded row without branches.
#pragma once

#include <vector>

#include "kernels/pool/padded_table.h"
#include "kernels/pool/vector_pool.h"

namespace graphkit {

class PaddedPool final : public VectorPool {
  public:
    // Return null if there are no windows, if the stride along rows is large, or if padded rows would be much larger
    // than the rows of the input.
    static std::shared_ptr<const PaddedPool> maximum(const PoolGeometry& geometry);
    static std::shared_ptr<const PaddedPool> mean(const PoolGeometry& geometry, bool include_pad);

    // Estimated nanoseconds for all planes, on one thread.
    double nanoseconds() const;

    std::string name() const override { return "padded"; }

    std::size_t scratch_bytes(int threads) const override;
    void run(int threads, const float* x, float* y, std::byte* scratch) const override;

  private:
    PaddedPool(const PoolGeometry& geometry, bool mean);

    // Number of rows of windows that are computed together; number of such parts of all planes.
    std::int64_t together() const;
    std::int64_t parts() const;
    std::size_t padded_bytes() const;
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
    std::int64_t most_rows_ = 1;     // most rows that a window reads
    std::vector<PoolReach> reaches_[2];  // of each window along depth and height
    std::vector<std::int64_t> offsets_;
    std::vector<PaddedPhase> phases_;
    PaddedLayout layout_{};
    std::vector<float> divisors_;
    std::vector<std::int64_t> divisor_rows_;
};

}  // namespace graphkit
