// Convolutions of bytes with one filter for each channel, channels last.
#pragma once

#include "kernels/quant/integer_product.h"

namespace graphkit {

// Adjacent positions whose taps are all in x or in the padding, and blocks of channels; the last block may have fewer.
// Arrays of channels are in the order of the sums: see byte_filter_place. If a block has at most half of its channels,
// its other half repeats them for the next position.
struct ByteFilterBlock {
    const std::uint8_t* const* taps;  // of the first position
    std::int64_t tap_count;
    std::int64_t positions;
    std::int64_t x_step;  // bytes from a position's taps to those of the next
    std::int64_t channels;
    std::uint8_t flip;
    const std::int8_t* weights;  // [blocks][groups of kTerms taps][4][lanes][kTerms]
    const std::int32_t* offsets;
    const std::int32_t* zeros;  // null if all are zero
    const float* factors;
    bool sums;  // the results are int32, not bytes
    ByteResult bytes;
    void* y;  // [positions, channels]
};

struct ByteFilterFunctions {
    std::int64_t block;  // channels of a block
    void (*filter)(const ByteFilterBlock& block);
    void (*dot_filter)(const ByteFilterBlock& block);  // null if the instruction set has no products of bytes
};

GRAPHKIT_ISA_TABLE(ByteFilterFunctions, byte_filter_functions);

// The place of a channel in its block: the bytes of four taps are interleaved within 16 bytes.
inline std::int64_t byte_filter_place(std::int64_t channel, std::int64_t block) {
    const std::int64_t vector = channel % 16 / 4;
    const std::int64_t lane = channel / 16 * 4 + channel % 4;
    return vector * (block / 4) + lane;
}

class DepthwiseBytes final : public Kernel {
  public:
    DepthwiseBytes(IntegerOperands operands, const TensorSpec& y, const IntegerGeometry& geometry, IntegerOrder order,
                   bool pack_weights, int threads);

    std::size_t scratch_bytes() const override { return scratch_.total; }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<int> packed_inputs() const override;
    std::size_t packed_bytes(int input) const override;
    std::string packed_layout(int input) const override;
    void pack(int input, const void* plain, void* packed) const override;
    std::string implementation() const override;

  private:
    struct Scratch {
        std::size_t numbers, placed, padding, x, y, w, threads, of_thread, total;
    };

    void filter_line(ByteFilterBlock& block, const std::uint8_t* x, const std::uint8_t* padding, std::int64_t line,
                     const std::uint8_t** taps) const;
    bool lies_inside(std::int64_t line) const;
    std::int64_t channel_at(std::int64_t at) const;
    void place_numbers(ColumnNumbers& numbers, std::byte* placed) const;

    IntegerOperands operands_;
    IntegerGeometry geometry_;
    IntegerOrder order_;
    ColumnPlan plan_;
    const ByteFilterFunctions& functions_;
    bool dot_;
    bool pack_weights_;
    std::int64_t channels_;
    std::int64_t padded_;
    std::int64_t tap_groups_;
    std::vector<std::int32_t> order_of_;  // the channel at each place
    // The range of positions of a line for which all taps along the line are inside of x.
    std::int64_t inner_begin_ = 0;
    std::int64_t inner_end_ = 0;
    Scratch scratch_{};
};

}  // namespace graphkit
