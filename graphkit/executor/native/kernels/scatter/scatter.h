// Updates written to, or combined with, elements that indices address. Each element meets its updates in their order,
// for any number of threads; half floats are combined in float and rounded once. Indices outside their axis throw
// NativeError from run, before anything is written.
#pragma once

#include "primitives/indices.h"
#include "runtime/kernel.h"

namespace graphkit {

enum class Reduction : std::uint8_t { none, add, mul, min, max };

// By ONNX's name. Throws NativeError for any other.
Reduction reduction_named(const std::string& name);

// y = x with updates[i, j, ...] at position indices[i, j, ...] of `axis`. Any element type; y may be x's memory.
class ScatterElements final : public Kernel {
  public:
    ScatterElements(Dims x, Dims indices, std::int64_t axis, Reduction reduction, ElementType type,
                    ElementType index_type, int threads);

    std::size_t scratch_bytes() const override;
    std::vector<std::pair<int, int>> inplace() const override { return {{0, 0}}; }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    template <typename Element, typename Update, typename Index, typename Combine>
    void apply(Element* y, const Update* updates, const Index* indices, Combine&& combine) const;

    std::size_t axis_;
    Reduction reduction_;
    Dims strides_;  // of x
};

// x: [*a, *b] with slices at index tuples; indices: int64 [*c, len(a)]; updates: [*c, *b]. y may be x's memory.
class ScatterND final : public Kernel {
  public:
    ScatterND(Dims x, Dims indices, Reduction reduction, ElementType type, int threads);

    std::size_t scratch_bytes() const override;
    std::vector<std::pair<int, int>> inplace() const override { return {{0, 0}}; }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    IndexTuples tuples_;
    Reduction reduction_;
};

// dx: zeros of x's shape with each slice of dy added at its index; float types. Operands: dy, x (not read), indices.
class GatherGrad final : public Kernel {
  public:
    GatherGrad(Dims x, ElementType x_type, Dims indices, std::int64_t axis, ElementType type, ElementType index_type,
               int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    AroundAxis around_;
    std::size_t axis_;
};

}  // namespace graphkit
