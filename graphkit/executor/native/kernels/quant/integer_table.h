// Sums of products of bytes, for tiles of a result: what integer products and convolutions are made of.
#pragma once

#include <cstdint>

#include "runtime/isa.h"

namespace graphkit {

enum class IntegerResult : std::uint8_t { sums, bytes, reals };

// Terms that lie side by side in packed weights, as one instruction adds them up.
constexpr std::int64_t kTerms = 4;
// Rows of a block, at most: several tiles, which share the columns of w in the nearest cache.
constexpr std::int64_t kBlockRows = 24;

// How numbers become bytes. Below 2^15, so that int16 has what lies between.
struct ByteResult {
    float high;         // the largest byte less the zero point
    std::int32_t zero;
    bool is_signed;
};

// Rows of a result, in any number of columns: with s = sum over taps and terms of (x ^ flip) * w, in int32,
//     t = s + offsets[column] - zeros[column] * (sum over taps and terms of x ^ flip)
// it is t (sums), t * factors[column] + bias[column] in float32 (reals), or t * factors[column] in float32 rounded to
// even, plus `zero`, within the bounds of bytes, signed ones or not; the least one for NaN. Arrays of columns reach to
// the end of a panel.
struct IntegerBlock {
    const std::uint8_t* const* rows;  // row r of tap t is rows[t * kBlockRows + r]
    std::int64_t row_count;           // kBlockRows at most
    std::int64_t taps;
    std::int64_t quads;  // of kTerms terms in each tap
    std::uint8_t flip;
    const std::int8_t* panels;  // [panels][taps * quads][lanes][kTerms]
    std::int64_t columns;
    const std::int32_t* offsets;
    const std::int32_t* zeros;  // null: all are zero
    const float* factors;
    const float* bias;  // null: none
    IntegerResult result;
    ByteResult bytes;
    void* y;
    std::int64_t stride;  // elements between rows of y
};

struct IntegerFunctions {
    std::int64_t lanes;  // columns of a panel
    void (*product)(const IntegerBlock& block);
    // The same by the processor's products of bytes; null where the set has none.
    void (*dot_product)(const IntegerBlock& block);
};

GRAPHKIT_ISA_TABLE(IntegerFunctions, integer_functions);

}  // namespace graphkit
