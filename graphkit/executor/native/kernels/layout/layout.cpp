// Kernels whose output is the input in another order: regular views of it, and reversed sequences.
#include <algorithm>
#include <cstring>

#include "primitives/elements.h"
#include "primitives/slice_copy.h"
#include "primitives/strided_copy.h"
#include "runtime/bindings.h"
#include "runtime/kernel.h"
#include "runtime/operator_kernels.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// y, in row-major order, = the elements x[offset + i . strides] for all indices i below `sizes`: Transpose, Slice,
// Expand, Tile, DepthToSpace, SpaceToDepth. Any element type. Throws NativeError when the view leaves x or has not as
// many elements as y.
class StridedView final : public Kernel {
  public:
    StridedView(std::string name, Dims x, Dims y, const Dims& sizes, const Dims& strides, std::int64_t offset,
                ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    StridedCopy copy_;
    std::int64_t offset_;  // bytes
};

// The first lengths[b] steps of batch b in reverse order, the others in place. One of the two axes is 0, the other 1.
// Throws NativeError from run for a length that is negative or exceeds the time axis.
class ReverseSequence final : public Kernel {
  public:
    ReverseSequence(Dims x, bool batch_first, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    bool batch_first_;
};

}  // namespace

StridedView::StridedView(std::string name, Dims x, Dims y, const Dims& sizes, const Dims& strides, std::int64_t offset,
                         ElementType type, int threads)
    : Kernel(std::move(name), threads), offset_(offset * static_cast<std::int64_t>(size_of(type))) {
    inputs_ = {{"x", std::move(x), type}};
    outputs_ = {{"y", std::move(y), type}};
    require_inside(*this, sizes, strides, offset, count(inputs_[0].shape));
    if (count(sizes) != count(outputs_[0].shape)) {
        throw NativeError(describe() + ": the view has " + std::to_string(count(sizes)) +
                          " elements, but the output has another number");
    }
    copy_ = StridedCopy(sizes, strides, row_major(sizes), size_of(type));
}

void StridedView::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    copy_.run(threads(), static_cast<const std::byte*>(inputs[0]) + offset_, outputs[0]);
}

ReverseSequence::ReverseSequence(Dims x, bool batch_first, ElementType type, int threads)
    : Kernel("ReverseSequence", threads), batch_first_(batch_first) {
    if (x.size() < 2) {
        throw NativeError("ReverseSequence: x has fewer than two axes");
    }
    outputs_ = {{"y", x, type}};
    inputs_ = {{"x", x, type}, {"sequence_lens", {x[batch_first ? 0 : 1]}, ElementType::i64}};
}

void ReverseSequence::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    const Dims& shape = inputs_[0].shape;
    const auto* lengths = static_cast<const std::int64_t*>(inputs[1]);
    const std::int64_t batches = shape[batch_first_ ? 0 : 1];
    const std::int64_t steps = shape[batch_first_ ? 1 : 0];
    for (std::int64_t b = 0; b < batches; ++b) {
        if (lengths[b] < 0 || lengths[b] > steps) {
            throw NativeError(describe() + ": length " + std::to_string(lengths[b]) + " of batch " + std::to_string(b) +
                              " is outside [0, " + std::to_string(steps) + "]");
        }
    }
    const std::int64_t bytes =
        count({shape.begin() + 2, shape.end()}) * static_cast<std::int64_t>(size_of(inputs_[0].type));
    const auto reversed = [=](std::int64_t step, std::int64_t batch) {
        return step < lengths[batch] ? lengths[batch] - 1 - step : step;
    };
    const auto* x = static_cast<const std::byte*>(inputs[0]);
    auto* y = static_cast<std::byte*>(outputs[0]);
    if (batch_first_) {
        copy_slices(threads(), x, y, batches, steps, bytes,
                    [=](std::int64_t batch, std::int64_t step) { return batch * steps + reversed(step, batch); });
    } else {
        copy_slices(threads(), x, y, steps, batches, bytes,
                    [=](std::int64_t step, std::int64_t batch) { return reversed(step, batch) * batches + batch; });
    }
}

GRAPHKIT_KERNEL("", ReverseSequence) {
    const TensorSpec& x = node.input(0).tensor;
    return std::make_unique<ReverseSequence>(x.shape, node.integer("batch_axis") == 0, x.type, node.threads);
}

GRAPHKIT_BINDINGS(layout) {
    nb::class_<StridedView, Kernel>(m, "StridedView", "y = x[offset + i . strides] for all i below sizes.")
        .def(
            "__init__",
            [](StridedView* self, Text name, Dims x, Dims y, const Dims& sizes, const Dims& strides,
               std::int64_t offset, Text dtype, int threads) {
                new (self)
                    StridedView(name, std::move(x), std::move(y), sizes, strides, offset, element_type(dtype), threads);
            },
            "name"_a, "x"_a, "y"_a, "sizes"_a, "strides"_a, "offset"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<ReverseSequence, Kernel>(m, "ReverseSequence")
        .def(
            "__init__",
            [](ReverseSequence* self, Dims x, bool batch_first, Text dtype, int threads) {
                new (self) ReverseSequence(std::move(x), batch_first, element_type(dtype), threads);
            },
            "x"_a, "batch_first"_a, "dtype"_a, "threads"_a = 0);
}

}  // namespace graphkit
