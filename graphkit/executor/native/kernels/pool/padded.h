// Pooling of rows in vectors: padded copies of some rows at a time, which windows side by side read without branches.
#pragma once

#include <memory>
#include <vector>

#include "kernels/pool/padded_table.h"
#include "kernels/pool/pool.h"

namespace graphkit {

// Maxima, or means, of the windows of float32 planes. It keeps no reference to the geometry that it is made from. Means
// sum in row-major order. NaN wins over numbers.
class PaddedPool {
  public:
    // Null if the stride along rows is large, or if padded copies would be much larger than the rows themselves.
    static std::shared_ptr<const PaddedPool> maximum(const PoolGeometry& geometry);
    static std::shared_ptr<const PaddedPool> mean(const PoolGeometry& geometry, bool include_pad);

    PaddedPool(const PaddedPool&) = delete;
    PaddedPool& operator=(const PaddedPool&) = delete;

    void run(int threads, const float* x, float* y) const;

  private:
    // Depths and rows of windows, first to last - 1; for means also what they read of the input.
    struct Part {
        std::int64_t first_depth, last_depth, first_row, last_row;
        std::int64_t input_depth, input_depths, input_row, input_rows;
        std::int64_t first_run, last_run;  // the rows of it that are copied
    };

    // Neighbouring rows of the input.
    struct Run {
        std::int64_t row, count;
    };

    // The positions of the input that a window reads along an axis: `count` from `first` on, a dilation apart.
    using Reach = PaddedHeights;

    PaddedPool(const PoolGeometry& geometry, bool mean, bool include_pad);

    bool lay_out_rows(const PoolGeometry& g);
    void lay_out_offsets();
    void add_divisors(const PoolGeometry& g, bool include_pad);
    void divide_maxima();
    void divide_means();
    std::vector<bool> read_positions(int axis) const;
    Part part_of(std::int64_t first_depth, std::int64_t last_depth, std::int64_t first_row,
                 std::int64_t last_row) const;
    std::int64_t last_fitting(int axis, std::int64_t others, std::int64_t first) const;
    void copy(const Part& part, const float* plane, float* padded) const;
    void run_part(const Part& part, const float* plane, float* y, float* padded) const;

    const PaddedPoolFunctions& functions_;
    bool mean_;
    std::int64_t planes_;
    std::int64_t input_[3];
    std::int64_t dilation_[3];
    std::int64_t kernel_[2] = {1, 1};  // positions that a window reads at most
    std::int64_t output_size_;
    std::vector<Reach> reaches_[2];  // of each window along depth and height
    std::vector<bool> read_;         // whether a window reads this depth
    std::vector<Run> runs_;
    std::vector<std::int64_t> shifts_;
    std::vector<std::int64_t> offsets_;
    std::vector<PaddedPhase> phases_;
    PaddedLayout layout_{};
    std::vector<float> divisors_;
    std::vector<std::int64_t> divisor_rows_;
    std::vector<Part> parts_;
    std::int64_t copied_ = 0;  // elements of the padded rows of a part, at most
};

}  // namespace graphkit
