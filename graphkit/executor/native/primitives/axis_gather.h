// Copies with a table of source positions for each axis: for padding, and for resizing to nearest elements.
#pragma once

#include <optional>

#include "runtime/kernel.h"

namespace graphkit {

// For each axis the positions to copy; no value: the axis is copied unchanged.
using Maps = std::vector<std::optional<Dims>>;

// y[i, j, ...] = x[maps[0][i], maps[1][j], ...]; the position -1 gives the fill value.
class AxisGather {
  public:
    AxisGather() = default;
    // Throws NativeError for a position outside of its axis. `y` becomes the shape of the result.
    AxisGather(const Dims& x, const Maps& maps, std::size_t element, Dims& y);

    // `fill` points at one element.
    void run(int threads, const std::byte* x, std::byte* y, const std::byte* fill) const;

  private:
    struct Axis {
        std::int64_t size;    // in y
        std::int64_t stride;  // in x, in bytes
        Dims map;             // empty: the identity
    };
    // Elements of a row that are adjacent in x, too, or that are all the fill value (source -1). Offsets and sizes are
    // in bytes.
    struct Run {
        std::int64_t target;
        std::int64_t bytes;
        std::int64_t source;
    };

    // A single element of a row, which belongs to no run. Offsets are in bytes.
    struct Pick {
        std::int32_t target;
        std::int32_t source;
    };
    class Rows;

    void move_single_elements();
    template <typename T>
    void copy_row(const std::byte* x, std::byte* y, T fill) const;

    std::int64_t rows_ = 0;
    std::int64_t row_bytes_ = 0;  // of y
    std::size_t element_ = 1;
    std::vector<Axis> outer_;
    std::vector<Run> runs_;
    std::vector<std::int32_t> picks_;  // if most runs are short: the source offset of each element in bytes; -1: fill
    // Otherwise, the single elements of a row: those that are copied, and those that are filled.
    std::vector<Pick> single_;
    std::vector<std::int32_t> filled_;
};

}  // namespace graphkit
