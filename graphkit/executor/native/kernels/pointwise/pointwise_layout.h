// How a pointwise kernel iterates over its operands: it broadcasts smaller operands without copying them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/kernel.h"

namespace graphkit {

// How the elements of an input are accessed while the output is computed in row-major order.
enum class Access : std::uint8_t {
    scalar,    // one element for all
    row,       // one element for each row
    stream,    // contiguous within a row
    gathered,  // rows are short: elements are collected for each block
};

// The axes of the outputs, merged where all inputs allow it. A row is the last axis.
struct Loops {
    Dims sizes;                  // at least one axis
    std::vector<Dims> strides;   // of each input, in elements; 0 along axes that it broadcasts
    std::vector<Access> access;  // of each input
    std::int64_t count = 0;      // elements of an output
    bool by_rows = false;        // whether a block never extends over the end of a row

    std::int64_t row() const { return sizes.back(); }
    // Returns the offset, in elements, of row `number` in input i.
    std::int64_t row_offset(std::size_t i, std::int64_t number) const;
    // Whether all rows of input i are the same.
    bool is_periodic(std::size_t i) const;
};

// Throws NativeError if an input does not broadcast to `shape`.
Loops make_loops(const Dims& shape, const std::vector<Dims>& inputs);

// Copies the elements of input i for the `count` output elements from `position` on to `to`.
void gather_block(const Loops& loops, std::size_t i, std::size_t element, const std::byte* from, std::byte* to,
                  std::int64_t position, std::int64_t count);

}  // namespace graphkit
