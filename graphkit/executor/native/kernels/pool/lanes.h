// Pooling of several planes at once. Planes are transposed, so that a vector holds the same element of each plane. This
// is fast even if rows are short, and for any stride.
#pragma once

#include <array>
#include <vector>

#include "kernels/pool/lanes_table.h"
#include "kernels/pool/vector_pool.h"
#include "primitives/strided_copy.h"

namespace graphkit {

class LanesPool final : public VectorPool {
  public:
    // Return null if there are no windows, or if the elements of one window along the first axis do not fit into the
    // caches.
    static std::shared_ptr<const LanesPool> maximum(const PoolGeometry& geometry);
    static std::shared_ptr<const LanesPool> mean(const PoolGeometry& geometry, bool include_pad);

    // Estimated nanoseconds for all planes, on one thread.
    double nanoseconds() const;

    std::string name() const override { return "lanes"; }

    std::size_t scratch_bytes(int threads) const override;
    void run(int threads, const float* x, float* y, std::byte* scratch) const override;

  private:
    struct Axis {
        std::int64_t size = 1;
        std::int64_t kernel = 1;
        std::int64_t dilation = 1;
        std::vector<PoolReach> windows;

        std::int64_t count() const { return static_cast<std::int64_t>(windows.size()); }
        // Whether window i is just position i.
        bool is_identity() const;
    };
    // Windows along the first axis that are computed together, and the range of positions that they read.
    struct Block {
        std::int64_t begin, end;
        std::int64_t first, last;
    };

    LanesPool(const PoolGeometry& geometry, bool mean);

    void cut(std::int64_t stride);
    Block block(std::int64_t number) const;
    std::int64_t blocks() const { return (axes_[0].count() + together_ - 1) / together_; }
    void add_divisors(const PoolGeometry& geometry, bool include_pad);
    std::int64_t floats() const;  // floats of a thread's buffers
    std::int64_t input_size() const { return axes_[0].size * axes_[1].size * axes_[2].size; }
    std::int64_t output_size() const { return axes_[0].count() * axes_[1].count() * axes_[2].count(); }
    // Elements of each lane: before the first axis is combined, after it, after the second, after the third.
    std::array<std::int64_t, 4> stages(std::int64_t positions, std::int64_t windows) const;
    double cost_of(const std::array<std::int64_t, 4>& sizes, double blocks) const;
    void compute(const Block& block, std::int64_t planes, const float* x, float* y, float* memory) const;

    const LanesPoolFunctions& functions_;
    TransposeTable::Tile transpose_;
    bool mean_;
    std::int64_t planes_;
    Axis axes_[3];
    bool combines_[3] = {false, false, false};  // whether an axis must be combined: its windows are not just positions
    double group_nanoseconds_ = 0;  // for as many planes as a vector has lanes
    std::int64_t together_ = 0;  // number of windows of a block; 0 if this class cannot pool them
    std::int64_t buffers_[2] = {0, 0};  // elements of each lane, in the two buffers of a thread
    // If windows along the first axis are far apart, only the positions that they read are copied: this many for each
    // window. Else 0.
    std::int64_t apart_ = 0;
    std::vector<PoolReach> copied_;  // for each window, its positions in the copy of a block
    std::vector<float> divisors_;  // for each result of a plane
};

}  // namespace graphkit
