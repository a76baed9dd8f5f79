// Pooling of data with channels last: float32, one to three spatial dimensions, vectors along the channels.
#pragma once

#include "kernels/pool/pool.h"
#include "runtime/isa.h"

namespace graphkit {

enum class PoolMode : std::uint8_t { maximum, mean, mean_with_padding };

// The channels of one window: `taps` rows of `channels` elements, at x + offsets[tap], combined into y.
struct PoolFunctions {
    // NaN wins over numbers.
    void (*maximum)(const float* x, const std::int64_t* offsets, std::int64_t taps, std::int64_t channels, float* y);
    // The sum times `factor`.
    void (*mean)(const float* x, const std::int64_t* offsets, std::int64_t taps, std::int64_t channels, float factor,
                 float* y);
};

GRAPHKIT_ISA_TABLE(PoolFunctions, pool_functions);

// y [N, positions, C] from x [N, spatial, C]; the shapes are given as [N, C, ...]. Threads own whole windows.
class ChannelsLastPool final : public Kernel {
  public:
    ChannelsLastPool(Dims x, Dims y, const PoolWindow& window, PoolMode mode, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    void row(const float* x, float* y, std::int64_t depth, std::int64_t height, std::int64_t* offsets) const;

    PoolGeometry geometry_;
    PoolMode mode_;
    std::int64_t batch_;
    std::int64_t channels_;
    const PoolFunctions& functions_;
};

}  // namespace graphkit
