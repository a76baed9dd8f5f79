// Kernels whose output contains elements of the input in another order: strided views, and reversed sequences.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "primitives/elements.h"
#include "primitives/slice_copy.h"
#include "primitives/strided_copy.h"
#include "runtime/bindings.h"
#include "runtime/kernel.h"
#include "runtime/kernel_factory.h"
#include "runtime/operator_kernels.h"
#include "runtime/recipe.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// y, in row-major order, = the elements x[offset + i . strides] for all indices i below `sizes`: Transpose, Slice,
// Expand, Tile, DepthToSpace, SpaceToDepth. Any element type. Throws NativeError if the view exceeds x, or if its
// number of elements is not that of y.
class StridedView final : public Kernel {
  public:
    StridedView(std::string name, Dims x, Dims y, const Dims& sizes, const Dims& strides, std::int64_t offset,
                ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    StridedCopy copy_;
    std::int64_t offset_;  // bytes
};

// Reverses the first lengths[b] steps of batch b, and copies the others. Batch and time are axes 0 and 1, or 1 and 0.
// Run throws NativeError for a length that is negative or exceeds the time axis.
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

// --- the view that an operator copies ------------------------------------------------------------------

namespace {

// The elements x[offset + i . strides] for all i below `sizes`.
struct View {
    Dims sizes;
    Dims strides;
    std::int64_t offset = 0;
};

std::unique_ptr<Kernel> copy_of(std::string operation, const NodeSpec& node, const View& view) {
    const TensorSpec& x = node.input(0).tensor;
    return std::make_unique<StridedView>(std::move(operation), x.shape, node.outputs[0].shape, view.sizes, view.strides,
                                         view.offset, x.type, node.threads);
}

// x reshaped to `split` and transposed to `order`.
View ordered(const Dims& split, const Dims& order) {
    const Dims strides = row_major(split);
    View view;
    for (const std::int64_t axis : order) {
        view.sizes.push_back(split.at(static_cast<std::size_t>(axis)));
        view.strides.push_back(strides[static_cast<std::size_t>(axis)]);
    }
    return view;
}

// x broadcast to the shape of y.
View expanded(const Dims& x, const Dims& y) {
    if (x.size() > y.size()) {
        throw NativeError("Expand: the result " + to_string(y) + " has fewer axes than " + to_string(x));
    }
    const Dims own = row_major(x);
    View view{y, Dims(y.size(), 0)};
    for (std::size_t i = 0; i < x.size(); ++i) {
        view.strides[y.size() - x.size() + i] = x[i] == 1 ? 0 : own[i];
    }
    return view;
}

View tiled(const Dims& x, const Dims& repeats) {
    if (repeats.size() != x.size()) {
        throw NativeError("Tile: " + std::to_string(repeats.size()) + " repeats for x " + to_string(x));
    }
    const Dims own = row_major(x);
    View view;
    for (std::size_t i = 0; i < x.size(); ++i) {
        view.sizes.insert(view.sizes.end(), {repeats[i], x[i]});
        view.strides.insert(view.strides.end(), {0, own[i]});
    }
    return view;
}

View depth_to_space(const Dims& x, std::int64_t b, bool depth_last) {
    const std::int64_t depth = x.at(1) / (b * b);
    return depth_last ? ordered({x[0], b, b, depth, x.at(2), x.at(3)}, {0, 3, 4, 1, 5, 2})
                      : ordered({x[0], depth, b, b, x.at(2), x.at(3)}, {0, 1, 4, 2, 5, 3});
}

View space_to_depth(const Dims& x, std::int64_t b, bool depth_last) {
    return ordered({x.at(0), x.at(1), x.at(2) / b, b, x.at(3) / b, b},
                   depth_last ? Dims{0, 3, 5, 1, 2, 4} : Dims{0, 1, 3, 5, 2, 4});
}

// The range of a slice along one axis. A bound without a value is an expression with symbolic sizes.
struct SlicedAxis {
    std::int64_t axis;  // counted from the front or, if negative, from the end
    std::optional<std::int64_t> start;
    std::optional<std::int64_t> end;
    std::int64_t step;

    // Whether the start must be given for each size, because the end and the result do not replace it.
    bool reads_start() const { return !start && (!end || step != 1); }

    // Returns the first position of a slice with `taken` elements along an axis of `size`: the clamped start or, if it
    // is unknown, the position that follows from the end.
    std::int64_t first(std::int64_t size, std::int64_t taken) const {
        const auto from_front = [&](std::int64_t bound) { return bound < 0 ? bound + size : bound; };
        if (!start) {
            return std::clamp<std::int64_t>(from_front(*end), 0, size) - taken;
        }
        const std::int64_t at = from_front(*start);
        return step > 0 ? std::clamp<std::int64_t>(at, 0, size) : std::min(std::max<std::int64_t>(at, 0), size - 1);
    }
};

// Makes the kernels of a Slice. The number of elements along an axis is known from the result, so a single known bound
// is mostly enough. Otherwise, `inputs[1]` holds the elements of the operand `starts` instead of its shape.
class SliceFactory final : public KernelFactory {
  public:
    SliceFactory(std::vector<SlicedAxis> axes, ElementType type, int threads)
        : axes_(std::move(axes)), type_(type), threads_(threads) {
        for (const SlicedAxis& along : axes_) {
            if (along.step == 0) {
                throw NativeError("Slice: a step is 0");
            }
        }
    }

    bool reads_starts() const {
        return std::any_of(axes_.begin(), axes_.end(), [](const SlicedAxis& along) { return along.reads_start(); });
    }

    std::unique_ptr<Kernel> make(const Shapes& inputs, const Shapes& outputs) const override {
        const Dims &x = present(inputs, 0), &y = present(outputs, 0);
        if (reads_starts() && present(inputs, 1).size() != axes_.size()) {
            throw NativeError("Slice: one start for each axis is needed");
        }
        if (x.size() != y.size()) {
            throw NativeError("Slice: x " + to_string(x) + " and the result " + to_string(y) +
                              " have different numbers of axes");
        }
        const Dims places = row_major(x);
        View view{y, places};
        for (std::size_t number = 0; number < axes_.size(); ++number) {
            SlicedAxis along = axes_[number];
            if (along.reads_start()) {
                along.start = (*inputs[1])[number];
            }
            const std::size_t i = checked_axis(along.axis, x.size());
            const std::int64_t first = y[i] == 0 ? 0 : along.first(x[i], y[i]);
            const std::int64_t last = first + (y[i] - 1) * along.step;
            if (y[i] != 0 && (std::min(first, last) < 0 || std::max(first, last) >= x[i])) {
                throw NativeError("Slice: no " + std::to_string(y[i]) + " elements along axis " + std::to_string(i) +
                                  " of x " + to_string(x) + " from " + std::to_string(first) + " on");
            }
            view.strides[i] = y[i] > 1 ? along.step * places[i] : 0;
            view.offset += first * places[i];
        }
        return std::make_unique<StridedView>("Slice", x, y, view.sizes, view.strides, view.offset, type_, threads_);
    }

  private:
    std::vector<SlicedAxis> axes_;
    ElementType type_;
    int threads_;
};

}  // namespace

GRAPHKIT_KERNEL_READING("", Transpose) {
    Dims order(node.input(0).tensor.shape.size());
    std::iota(order.rbegin(), order.rend(), 0);
    if (node.has_attribute("perm")) {
        order = node.integers("perm");
    }
    return copy_of("Transpose", node, ordered(node.input(0).tensor.shape, order));
}

GRAPHKIT_KERNEL_READING("", Expand) {
    return copy_of("Expand", node, expanded(node.input(0).tensor.shape, node.outputs[0].shape));
}

GRAPHKIT_KERNEL_READING("", Tile, 1) {
    return copy_of("Tile", node, tiled(node.input(0).tensor.shape, node.elements(1)));
}

GRAPHKIT_KERNEL_READING("", DepthToSpace) {
    const View view = depth_to_space(node.input(0).tensor.shape, node.integer("blocksize"), node.text("mode") == "DCR");
    return copy_of("DepthToSpace", node, view);
}

GRAPHKIT_KERNEL_READING("", SpaceToDepth) {
    const View view = space_to_depth(node.input(0).tensor.shape, node.integer("blocksize"), node.text("mode") == "DCR");
    return copy_of("SpaceToDepth", node, view);
}

GRAPHKIT_KERNEL_READING("", ReverseSequence) {
    const TensorSpec& x = node.input(0).tensor;
    return std::make_unique<ReverseSequence>(x.shape, node.integer("batch_axis") == 0, x.type, node.threads);
}

using SliceAxis = std::tuple<std::int64_t, std::optional<std::int64_t>, std::optional<std::int64_t>, std::int64_t>;
static const RecipeKind slice_factory_recipe(
    "SliceFactory", +[](SliceFactory* self, const std::vector<SliceAxis>& axes, Text dtype, int threads) {
        std::vector<SlicedAxis> sliced;
        for (const auto& [axis, start, end, step] : axes) {
            sliced.push_back({axis, start, end, step});
        }
        new (self) SliceFactory(std::move(sliced), element_type(dtype), threads);
    });

GRAPHKIT_BINDINGS(layout, "sized_kernels") {
    nb::class_<StridedView, Kernel>(m, "StridedView", "y = x[offset + i . strides] for all i below sizes.")
        .def(
            "__init__",
            [](StridedView* self, Text name, Dims x, Dims y, const Dims& sizes, const Dims& strides,
               std::int64_t offset, Text dtype, int threads) {
                new (self)
                    StridedView(name, std::move(x), std::move(y), sizes, strides, offset, element_type(dtype), threads);
            },
            "name"_a, "x"_a, "y"_a, "sizes"_a, "strides"_a, "offset"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<SliceFactory, KernelFactory>(m, "SliceFactory", "Makes the kernels of a Slice.")
        .def("__init__", slice_factory_recipe.init(), "axes"_a, "dtype"_a, "threads"_a,
             "axes: (axis, start, end, step). A bound that depends on the sizes is None.")
        .def_prop_ro(
            "reads_elements",
            [](const SliceFactory& self) {
                return self.reads_starts() ? std::vector<std::size_t>{1} : std::vector<std::size_t>{};
            },
            "Positions of the operands whose elements it gets instead of their shapes.");
    nb::class_<ReverseSequence, Kernel>(m, "ReverseSequence")
        .def(
            "__init__",
            [](ReverseSequence* self, Dims x, bool batch_first, Text dtype, int threads) {
                new (self) ReverseSequence(std::move(x), batch_first, element_type(dtype), threads);
            },
            "x"_a, "batch_first"_a, "dtype"_a, "threads"_a = 0);
}

}  // namespace graphkit
