// Convolution by our own code, tile by tile: sums are added up in short chains, so that their error does not grow with
// their length, and windows of 3 x 3 need fewer multiplications than the definition has. Float32, channels last, one or
// two spatial dimensions, one group. See winograd.isa.cpp and direct.isa.cpp.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/conv/following.h"
#include "kernels/conv/tiled_table.h"
#include "kernels/conv/window.h"
#include "kernels/pointwise/epilogue.h"
#include "runtime/kernel.h"

namespace graphkit {

enum class TiledMethod : std::uint8_t { winograd, direct };

struct TiledOptions {
    TiledMethod method = TiledMethod::winograd;
    Epilogue epilogue;
    bool pack_weights = false;  // the weights are constant: they come transformed
    // The gradient in x: `x` is dy, `y` is dx, and w [C of x, C of y, kernel]. Of windows of one element, that is a
    // convolution whose weights lie in the other order.
    bool transposed = false;
};

// y = epilogue(conv(x, w) + bias). Shapes are given as [N, C, spatial], arrays lie as [N, spatial, C]; w [M, C, kernel]
// lies as it is. The residual is the last input. The same bits for any number of threads.
class TiledConvolution final : public Kernel {
  public:
    // Throws Unsupported where the method does not cover the window and for a scaled product, NativeError for shapes
    // that do not fit.
    TiledConvolution(const Dims& x, const Dims& w, const Dims& y, const Window& window, const TiledOptions& options,
                     int threads);

    // The method to compute this convolution with, of `constant` weights or not. None where the library's code is
    // faster, and has no longer chains of sums; where it is only somewhat faster, `vary` says that the time which it
    // takes to make it is to be saved.
    static std::optional<TiledMethod> method(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                                             bool constant, bool transposed, bool vary);

    // Whether so many filters leave little of the last block without work.
    static bool fills_blocks(std::int64_t filters);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<int> packed_inputs() const override;
    std::size_t packed_bytes(int input) const override;
    std::string packed_layout(int input) const override;
    void pack(int input, const void* plain, void* packed) const override;
    std::vector<std::pair<int, int>> inplace() const override;
    std::string implementation() const override { return implementation_; }

  private:
    void share_out();
    void transform(const float* w, std::byte* to) const;
    std::int64_t blocks() const { return (shape_.filters + table_.block - 1) / table_.block; }
    std::int64_t tiles() const;
    std::int64_t parts() const { return tile_parts_ * block_parts_; }
    std::size_t workers() const;
    // Of the weights: for each chunk of channels of each block whether it is unsound, then the blocks.
    std::size_t flag_bytes() const;
    std::size_t weight_bytes() const;
    std::size_t part_bytes() const;

    const TiledTable& table_;
    std::string implementation_;  // with the instruction set of the table
    TiledShape shape_{};
    std::int64_t images_;
    bool packed_;
    bool transposed_;
    Following following_;
    std::int64_t tile_parts_ = 1;  // the work is cut into so many parts of the tiles
    std::int64_t block_parts_ = 1;  // ... times so many parts of the blocks
};

}  // namespace graphkit
