// Tensors made from a few numbers: constants, ranges, one-hot rows, identity matrices, triangles.
#pragma once

#include <optional>

#include "primitives/elements.h"
#include "runtime/kernel.h"

namespace graphkit {

// y filled with the element given by its bytes. Any element type. The shape operand is not read.
class Fill final : public Kernel {
  public:
    Fill(Dims y, const std::string& value, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    std::string value_;
};

// start + i * delta, `length` integers of 16, 32 or 64 bits. Operands: start, limit (not read), delta. `shapes` are
// theirs, each of one element.
class Range final : public Kernel {
  public:
    Range(const std::vector<Dims>& shapes, std::int64_t length, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
};

// x copied, when the one element of `token` is finite; else throws NotFinite before anything is written.
class FiniteGuard final : public Kernel {
  public:
    FiniteGuard(Dims x, ElementType type, Dims token, ElementType token_type);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
};

// A matrix with `one` (its bytes) on diagonal k, positive above the main one, and zeros elsewhere. x is not read.
class EyeLike final : public Kernel {
  public:
    EyeLike(Dims x, ElementType x_type, std::int64_t k, const std::string& one, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    std::int64_t k_;
    std::string one_;
};

// values[1] where the position along the new axis `axis` is the index, values[0] elsewhere; indices in
// [-depth, depth - 1] of any numeric type, others give rows of values[0]. Operands: indices, depth (not read), values.
class OneHot final : public Kernel {
  public:
    OneHot(Dims indices, Dims depth_shape, std::int64_t depth, std::int64_t axis, ElementType type,
           ElementType index_type, ElementType depth_type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    AroundAxis around_;
};

// The upper (or lower) triangle of the last two axes, zeros elsewhere; operand 1, one int64 of shape `k`, is the
// diagonal that bounds it; without it that is the main one. Any element type; y may be x's memory.
class Trilu final : public Kernel {
  public:
    Trilu(Dims x, bool upper, std::optional<Dims> k, ElementType type, int threads);

    std::vector<std::pair<int, int>> inplace() const override { return {{0, 0}}; }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    bool upper_;
};

}  // namespace graphkit
