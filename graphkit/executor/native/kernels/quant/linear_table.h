// Loops between numbers and the integers that stand for them.
#pragma once

#include <cstdint>

#include "kernels/quant/integer_operands.h"
#include "runtime/isa.h"

namespace graphkit {

// A scale and a zero point for all elements, or for each one of a row.
struct LinearRow {
    const float* scales;
    const std::int32_t* zeros;
    bool each;
};

// One side of a binary operation, and its result. See the operators QLinearAdd and QLinearMul.
struct BinaryRow {
    float a_factor, b_factor, fixed;  // a product has a_factor alone
    std::int32_t a_zero, b_zero;      // of a product
    std::uint8_t flip;                // 0x80 where bytes are signed
    bool a_single, b_single;          // one element for the whole row
};

// Results have the integers 8 bits unsigned, signed, 16 bits unsigned, signed, 32 bits signed, in this order.
constexpr int kLinearTypes = 5;
// The position of a type among those; -1 for another.
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
    // round(x / scale) + zero within the bounds of the type, the least for NaN. None for int32.
    void (*quantise[kLinearTypes])(const float* x, std::int64_t count, const LinearRow& row, void* y);
    // (x - zero) * scale.
    void (*dequantise[kLinearTypes])(const void* x, std::int64_t count, const LinearRow& row, float* y);
    // The least and the largest of x and what they are already; NaN has no part.
    void (*range)(const float* x, std::int64_t count, float& low, float& high);
    void (*add)(const std::uint8_t* a, const std::uint8_t* b, std::int64_t count, const BinaryRow& row,
                std::uint8_t* y);
    void (*multiply)(const std::uint8_t* a, const std::uint8_t* b, std::int64_t count, const BinaryRow& row,
                     std::uint8_t* y);
    // sums[i] += x[i] ^ flip.
    void (*add_bytes)(const std::uint8_t* x, std::int64_t count, std::uint8_t flip, std::int32_t* sums);
    // y = sums * factor within the bounds, rounded, plus zero.
    void (*requantise)(const std::int32_t* sums, std::int64_t count, float factor, float low, float high,
                       std::int32_t zero, std::uint8_t* y);
    // The largest, byte by byte, of `rows` rows; flip makes signed bytes unsigned.
    void (*maximum)(const std::uint8_t* const* rows, std::int64_t taps, std::int64_t count, std::uint8_t flip,
                    std::uint8_t* y);
};

GRAPHKIT_ISA_TABLE(LinearFunctions, linear_functions);

// x as DynamicQuantizeLinear has it, on several threads.
FoundRange quantise_by_range(int threads, const float* x, std::int64_t count, std::uint8_t* y);

}  // namespace graphkit
