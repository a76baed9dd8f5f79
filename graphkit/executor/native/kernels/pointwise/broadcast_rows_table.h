// Functions on rows with broadcast operands, compiled for several instruction sets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/pointwise/pointwise_table.h"
#include "runtime/isa.h"

namespace graphkit {

// An operand of a function on rows. Row r begins at data + r * stride; `equal`: all of its elements are that one.
struct RowOperand {
    const std::byte* data;
    std::int64_t stride;  // in bytes
    bool equal;
};

// Computes `rows` contiguous rows y of `size` elements each, and touches no elements beyond them. y may be an operand
// of the same shape. Of two operands, one may have equal elements. Of three, the last and one other may, together.
using RowsFunction = void (*)(std::byte* y, const RowOperand* operands, std::int64_t rows, std::int64_t size);

// By opcode and element type. Null except for operations whose operands are often broadcast.
struct BroadcastRowsTable {
    std::array<std::array<RowsFunction, kElementTypes>, kOpcodeCount> functions{};
};

GRAPHKIT_ISA_TABLE(BroadcastRowsTable, broadcast_rows_table);

}  // namespace graphkit
