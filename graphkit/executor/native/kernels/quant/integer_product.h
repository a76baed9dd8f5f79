// Products and convolutions of bytes with exact int32 sums, and the conversion of the sums to results.
#pragma once

#include <optional>

#include "kernels/quant/integer_operands.h"
#include "primitives/strided_copy.h"

namespace graphkit {

// A product of x [.., rows, terms] with one or several matrices; or a convolution, whose windows are the rows.
struct IntegerGeometry {
    // w: groups (or matrices) of taps x terms x columns, with strides in elements.
    std::int64_t groups = 1;
    std::int64_t taps = 1;
    std::int64_t terms = 0;
    std::int64_t columns = 0;
    std::int64_t w_group = 0, w_tap = 0, w_term = 0, w_column = 0;
    // x: bytes from row to row of a product, or from pixel to pixel.
    std::int64_t x_stride = 0;
    std::int64_t rows = 0;  // of each group

    // For a product: offsets of each group's first row in x, and of its first result in y. Empty: group * terms and
    // group * columns, as in a convolution.
    Dims x_begin, y_begin;
    Dims w_matrix;  // for each group, the index of its matrix in w, which has `groups` matrices
    std::int64_t y_stride = 0;

    bool shared = false;  // parameters are the same for all groups

    // For a convolution: sizes along three spatial axes.
    bool windows = false;
    std::int64_t input[3] = {1, 1, 1}, output[3] = {1, 1, 1}, kernel[3] = {1, 1, 1};
    std::int64_t stride[3] = {1, 1, 1}, dilation[3] = {1, 1, 1}, pad[3] = {0, 0, 0};
    // Bytes from a window's first tap to each tap, and to the first tap of each line.
    Dims tap_offsets, line_offsets;
};

// Writes the addresses of the taps of windows [first, first + count) to rows[window * row_step + tap * tap_step];
// `padding` for taps outside of x. x: the first byte of the channels.
void window_rows(const IntegerGeometry& geometry, const std::uint8_t* x, const std::uint8_t* padding,
                 std::int64_t first, std::int64_t count, std::int64_t row_step, std::int64_t tap_step,
                 const std::uint8_t** rows);

// Reordering of x before, and of y after the product: for a transposed operand, or for channels first.
struct IntegerOrder {
    std::optional<StridedCopy> x, y;
};

class IntegerProduct : public Kernel {
  public:
    IntegerProduct(const char* name, IntegerOperands operands, const TensorSpec& y, IntegerGeometry geometry,
                   IntegerOrder order, float alpha, bool pack_weights, int threads);

    std::size_t scratch_bytes() const override { return scratch_.total; }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<int> packed_inputs() const override;
    std::size_t packed_bytes(int input) const override;
    std::string packed_layout(int input) const override;
    void pack(int input, const void* plain, void* packed) const override;
    std::string implementation() const override;

  private:
    struct Scratch {
        std::size_t numbers, padding, x, y, w, threads, of_thread, total;
    };
    struct Run;

    void lay_out();
    std::int64_t panel_bytes() const { return walk_taps_ * quads_ * functions_.lanes * kTerms; }
    void pack_rows(const std::int8_t* w, std::byte* packed, std::int64_t group, std::int64_t panel,
                   std::int64_t panels) const;
    void pack_columns(const std::int8_t* w, std::byte* packed, std::int64_t group, std::int64_t panel) const;
    void block(const Run& run, std::int64_t item, std::byte* own) const;
    void gather(const Run& run, const std::uint8_t** rows, std::int64_t count, std::byte* own) const;
    void line_rows(const Run& run, std::int64_t first, std::int64_t count, std::byte* own) const;
    std::uint8_t* gather_line(const Run& run, const std::uint8_t* line, std::int64_t wide, std::uint8_t* to) const;
    void gather_windows(const Run& run, std::int64_t group, std::int64_t first, std::int64_t count,
                        std::byte* own) const;
    std::byte* gathered_pointers(std::byte* own) const {
        return own + scratch_.of_thread - aligned(kBlockRows * sizeof(void*));
    }
    double nanoseconds() const;

    IntegerOperands operands_;
    IntegerGeometry geometry_;
    IntegerOrder order_;
    ColumnPlan plan_;
    const IntegerFunctions& functions_;
    bool dot_;
    bool pack_weights_;
    bool dynamic_;  // x is float32, and quantised by its range in each run
    bool gathers_;  // rows are gathered, since four terms of a tap are not contiguous
    bool lines_;  // whole lines of the kernel, with contiguous taps, are read instead of taps
    std::int64_t walk_taps_ = 1;  // number of taps, or lines, that the tiles iterate over
    std::int64_t quads_ = 0;
    std::int64_t block_columns_ = 0;  // columns of w that stay in a cache
    std::int64_t blocks_ = 0;
    std::int64_t strips_ = 0;  // of kBlockRows rows
    std::int64_t parts_ = 0;  // number of groups, or products
    Scratch scratch_{};
};

}  // namespace graphkit
