// Conversions between numbers and quantised integers.
#pragma once

#include <cstdint>

#include "kernels/quant/integer_operands.h"
#include "runtime/isa.h"

namespace graphkit {

// A scale and a zero point for all elements, or (`each`) for each element of a row.
struct LinearRow {
    const float* scales;
    const std::int32_t* zeros;
    bool each;
};

// The parameters of a binary operation. See the operators QLinearAdd and QLinearMul.
struct BinaryRow {
    float a_factor, b_factor, fixed;  // a product uses a_factor only
    std::int32_t a_zero, b_zero;      // used by products
    std::uint8_t flip;                // 0x80 if the bytes are signed
    bool a_single, b_single;          // the operand is one element for the whole row
};

// Number of integer types, in this order: uint8, int8, uint16, int16, int32.
constexpr int kLinearTypes = 5;
// Returns the position of a type in this order; -1 for other types.
constexpr int linear_type(ElementType type) {
    switch (type) {
        case ElementType::u8:
            return 0;
        case ElementType::i8:
            return 1;
        case ElementType::u16:
            return 2;
        case ElementType::i16:
            return 3;
        case ElementType::i32:
            return 4;
        default:
            return -1;
    }
}

struct LinearFunctions {
    // round(x / scale) + zero, clamped to the range of the type; NaN gives its smallest number. Null for int32.
    void (*quantise[kLinearTypes])(const float* x, std::int64_t count, const LinearRow& row, void* y);
    // y = (x - zero) * scale.
    void (*dequantise[kLinearTypes])(const void* x, std::int64_t count, const LinearRow& row, float* y);
    // Updates low and high by the smallest and largest number of x; NaN is ignored.
    void (*range)(const float* x, std::int64_t count, float& low, float& high);
    void (*add)(const std::uint8_t* a, const std::uint8_t* b, std::int64_t count, const BinaryRow& row,
                std::uint8_t* y);
    void (*multiply)(const std::uint8_t* a, const std::uint8_t* b, std::int64_t count, const BinaryRow& row,
                     std::uint8_t* y);
    // sums[i] += x[i] ^ flip.
    void (*add_bytes)(const std::uint8_t* x, std::int64_t count, std::uint8_t flip, std::int32_t* sums);
    // y = clamp(sums * factor, low, high), rounded, plus zero.
    void (*requantise)(const std::int32_t* sums, std::int64_t count, float factor, float low, float high,
                       std::int32_t zero, std::uint8_t* y);
    // y = the maximum, byte by byte, of `taps` rows; flip makes signed bytes unsigned.
    void (*maximum)(const std::uint8_t* const* rows, std::int64_t taps, std::int64_t count, std::uint8_t flip,
                    std::uint8_t* y);
};

GRAPHKIT_ISA_TABLE(LinearFunctions, linear_functions);

// Quantises x like DynamicQuantizeLinear, on several threads.
FoundRange quantise_by_range(int threads, const float* x, std::int64_t count, std::uint8_t* y);

}  // namespace graphkit
