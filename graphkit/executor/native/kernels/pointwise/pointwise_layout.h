// How a pointwise kernel walks over its operands: broadcasting without a copy of the smaller ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/kernel.h"

namespace graphkit {

// Where an input's elements lie, seen from an output that is walked in row-major order.
enum class Access : std::uint8_t {
    scalar,    // one element for all
    row,       // one element for each row
    stream,    // neighbours in memory for neighbours in a row
    gathered,  // rows are short: collected block by block
};

// The output's axes, those merged along which all inputs behave alike. One row is the last of them.
struct Loops {
    Dims sizes;                  // at least one axis
    std::vector<Dims> strides;   // of each input, in elements; 0 where it is broadcast
    std::vector<Access> access;  // of each input
    std::int64_t count = 0;      // elements of an output
    bool by_rows = false;        // whether blocks end at the ends of rows

    std::int64_t row() const { return sizes.back(); }
    // Elements of input i that lie before row `number`.
    std::int64_t row_offset(std::size_t i, std::int64_t number) const;
    // Whether every row of input i is the same one.
    bool is_periodic(std::size_t i) const;
};

// Throws NativeError where an input does not broadcast to `shape`.
Loops make_loops(const Dims& shape, const std::vector<Dims>& inputs);

// Collects the `count` elements of input i that belong to the output's elements from `position` on.
void gather_block(const Loops& loops, std::size_t i, std::size_t element, const std::byte* from, std::byte* to,
                  std::int64_t position, std::int64_t count);

}  // namespace graphkit
