// Concat and Split: pieces that lie one after the other along an axis.
#pragma once

#include "runtime/kernel.h"

namespace graphkit {

// An array as rows of bytes, each of which has a part of every piece.
struct Pieces {
    std::int64_t rows = 0;
    std::vector<std::int64_t> ends;  // of each piece in a row; the last one is the row's length

    std::int64_t row() const { return ends.empty() ? 0 : ends.back(); }
};

// y = the operands one after the other along `axis`. Any element type.
class Concat final : public Kernel {
  public:
    Concat(const std::vector<Dims>& xs, std::int64_t axis, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    Pieces pieces_;
};

// Parts of x along `axis`, of the given sizes. Outputs that nobody reads may be left out. Any element type.
class Split final : public Kernel {
  public:
    Split(Dims x, const Dims& sizes, std::int64_t axis, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    Pieces pieces_;
};

}  // namespace graphkit
