// Max pooling that remembers which element of a window was the maximum, and the gradients of pooling: float32, channels
// last. Each element of a gradient gathers from the windows that hold it, so that threads own whole rows of results.
#pragma once

#include "kernels/pool/pool.h"
#include "runtime/isa.h"

namespace graphkit {

// A window that holds a given position: where its channels lie in dy, and which of its elements the position is.
struct PoolSource {
    std::int64_t offset;
    std::int32_t tap;
    float factor;  // of dy, in a mean
};

struct PoolGradientFunctions {
    // y = the maxima of `count` rows of channels at x + offsets[i]; chosen = numbers[i] of the first maximum. Either may
    // be null, and is left out.
    void (*maximum)(const float* x, const std::int64_t* offsets, const std::int32_t* numbers, std::int64_t count,
                    std::int64_t channels, float* y, std::uint8_t* chosen);
    // dx = the sum of dy over the sources where chosen is the source's tap.
    void (*gather_chosen)(const float* dy, const std::uint8_t* chosen, const PoolSource* sources, std::int64_t count,
                          std::int64_t channels, float* dx);
    // dx = the sum of dy * factor over the sources.
    void (*gather_shares)(const float* dy, const PoolSource* sources, std::int64_t count, std::int64_t channels,
                          float* dx);
};

GRAPHKIT_ISA_TABLE(PoolGradientFunctions, pool_gradient_functions);

// y [N, positions, C] from x [N, spatial, C], and which element of its window each maximum is, in row-major order:
// windows have 256 elements at most. Shapes are given as [N, C, ...]. The first of equal values wins, NaN over numbers.
// An output that nothing reads may be null.
class ChannelsLastMaxPoolTaps final : public Kernel {
  public:
    ChannelsLastMaxPoolTaps(Dims x, Dims y, const PoolWindow& window, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    PoolGeometry geometry_;
    std::int64_t batch_;
    std::int64_t channels_;
    const PoolGradientFunctions& functions_;
};

// What the gradients of both poolings share: for each position along an axis, the windows that hold it.
class ChannelsLastPoolGrad : public Kernel {
  protected:
    struct Holder {
        std::int64_t window;
        std::int32_t element;
    };

    ChannelsLastPoolGrad(const char* name, const Dims& dy, const Dims& dx, const PoolWindow& window, int threads);

    // Calls body(first source, count, offset of the position in dx) for all positions. `factor(depth, height, width)`
    // is that of the sources in a window.
    template <typename Factor, typename Body>
    void for_each_position(Factor&& factor, Body&& body) const;

    PoolGeometry geometry_;
    std::int64_t batch_;
    std::int64_t channels_;
    const PoolGradientFunctions& functions_;

  private:
    std::vector<std::vector<Holder>> holders_[3];
    std::size_t most_ = 1;  // sources of a position
};

class ChannelsLastMaxPoolGrad final : public ChannelsLastPoolGrad {
  public:
    ChannelsLastMaxPoolGrad(Dims dy, Dims dx, const PoolWindow& window, int threads);
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
};

class ChannelsLastAveragePoolGrad final : public ChannelsLastPoolGrad {
  public:
    ChannelsLastAveragePoolGrad(Dims dy, Dims dx, const PoolWindow& window, bool include_pad, int threads);
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    bool include_pad_;
};

}  // namespace graphkit
