// Sums of products of bytes for tiles of a result; integer products and convolutions use them.
#pragma once

#include <cstdint>

#include "runtime/isa.h"

namespace graphkit {

enum class IntegerResult : std::uint8_t { sums, bytes, reals };

// Adjacent terms in packed weights, which one instruction sums.
constexpr std::int64_t kTerms = 4;
// Largest number of rows of a block. A block has several tiles, which read the columns of w from the first-level cache.
constexpr std::int64_t kBlockRows = 24;

// The conversion of numbers to bytes. Numbers are below 2^15, so that intermediate results fit into int16.
struct ByteResult {
    float high;         // the largest byte minus the zero point
    std::int32_t zero;
    bool is_signed;
};

// Some rows of a result, in any number of columns. With s = sum over taps and terms of (x ^ flip) * w, in int32,
//     t = s + offsets[column] - zeros[column] * (sum over taps and terms of x ^ flip)
// the result is t (sums), t * factors[column] + bias[column] in float32 (reals), or t * factors[column] in float32,
// rounded to nearest even, plus `zero`, and clamped to the range of signed or unsigned bytes (NaN becomes the
// smallest). Arrays of columns extend to the end of a panel.
struct IntegerBlock {
    const std::uint8_t* const* rows;  // row r of tap t is rows[t * kBlockRows + r]
    std::int64_t row_count;           // at most kBlockRows
    std::int64_t taps;
    std::int64_t quads;  // groups of kTerms terms in each tap
    std::uint8_t flip;
    const std::int8_t* panels;  // [panels][taps * quads][lanes][kTerms]
    std::int64_t columns;
    const std::int32_t* offsets;
    const std::int32_t* zeros;  // null if all are zero
    const float* factors;
    const float* bias;  // null if there is none
    IntegerResult result;
    ByteResult bytes;
    void* y;
    std::int64_t stride;  // elements between rows of y
};

// The largest number of adjacent panels that are packed together, so that they read whole lines of the cache.
constexpr std::int64_t kPackedTogether = 4;

// Packs `panels` adjacent panels: panel p begins at to + p * panel bytes, and
//     to[quad][lane][k] = w[(quad * kTerms + k) * stride + p * lanes + lane] ^ flip,
// 0 beyond `terms` rows and `columns` columns. sums[column] = the sum of the column. The last panel has at least one
// column.
using PackPanels = void (*)(const std::int8_t* w, std::int64_t stride, std::int64_t terms, std::int64_t columns,
                            std::int64_t panels, std::uint8_t flip, std::int8_t* to, std::int32_t* sums);

struct IntegerFunctions {
    std::int64_t lanes;  // columns of a panel
    PackPanels pack;
    void (*product)(const IntegerBlock& block);
    // Like product, with the processor's instruction for products of bytes; null if the instruction set has none.
    void (*dot_product)(const IntegerBlock& block);
};

GRAPHKIT_ISA_TABLE(IntegerFunctions, integer_functions);

}  // namespace graphkit
