// Convolution by graphkit's own code, in tiles. Products are summed in short chains, so that rounding errors do not
// grow with the length of the sum, and 3 x 3 windows need fewer multiplications than the direct method. Float32,
// channels last, one or two spatial dimensions, one group. See winograd.isa.cpp and direct.isa.cpp.
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

enum class TiledMethod : std::uint8_t { winograd, direct, panels };

template <>
struct RecipeLast<TiledMethod> {
    static constexpr auto value = TiledMethod::panels;
};

struct TiledOptions {
    TiledMethod method = TiledMethod::winograd;
    Epilogue epilogue;
    bool pack_weights = false;  // w is constant: it comes transformed
    // Computes the gradient with respect to x: `x` is dy, `y` is dx, and w is [C of x, C of y, kernel]. With windows of
    // one element, that is a convolution whose weights are stored in the other order.
    bool transposed = false;
};

// y = epilogue(conv(x, w) + bias). Shapes are given as [N, C, spatial]; in memory, arrays are [N, spatial, C]. w is [M,
// C, kernel] in memory, too. The residual is the last input. Equal bits for any number of threads.
class TiledConvolution final : public Kernel {
  public:
    // Throws Unsupported for a scaled product and for windows that the method does not cover, NativeError for shapes
    // that do not match.
    TiledConvolution(const Dims& x, const Dims& w, const Dims& y, const Window& window, const TiledOptions& options,
                     int threads);

    // Returns the method for this convolution, with `constant` weights or not. No value if the library is faster and
    // its sums are not longer chains. With `vary`, sizes change: a method is then also chosen if the library is only
    // slightly faster, because making its kernels takes time.
    static std::optional<TiledMethod> method(const Dims& x, const Dims& w, const Dims& y, const Window& window,
                                             bool constant, bool transposed, bool vary);

    // Whether the method `panels` is available: weights packed for it are in the layout of oneDNN's products.
    static bool has_panels();

    // Whether this number of filters uses most of the last block.
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
    // The weights begin with flags: for each chunk of channels of each block, whether it is unsound. The blocks follow.
    // For the method `panels`, there are no flags.
    std::size_t flag_bytes() const;
    std::size_t weight_bytes() const;
    std::size_t part_bytes() const;

    const TiledTable& table_;
    std::string implementation_;  // with the instruction set of the table
    TiledShape shape_{};
    std::int64_t images_;
    bool has_flags_;
    bool packed_;
    bool transposed_;
    Following following_;
    std::int64_t tile_parts_ = 1;  // number of parts into which the tiles are divided
    std::int64_t block_parts_ = 1;  // number of parts into which the blocks are divided
};

}  // namespace graphkit
