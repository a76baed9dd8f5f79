// Gathers elements and slices by index. Any element type. If an index is outside of its axis, run throws NativeError.
#include "primitives/indices.h"
#include "primitives/slice_copy.h"
#include "runtime/bindings.h"
#include "runtime/kernel.h"
#include "runtime/operator_kernels.h"

namespace graphkit {
namespace {

// x: [*a, n, *b] with n at `axis`; y: [*a, *indices, *b]. Indices are int32 or int64.
class Gather final : public Kernel {
  public:
    Gather(Dims x, Dims indices, std::int64_t axis, ElementType type, ElementType index_type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    AroundAxis around_;
    std::size_t axis_;
};

// y[i, j, ...] = x with `axis` at indices[i, j, ...]; other axes of the indices are at most as long as those of x. If
// an index is out of range, a part of y may have been written.
class GatherElements final : public Kernel {
  public:
    GatherElements(Dims x, Dims indices, std::int64_t axis, ElementType type, ElementType index_type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    class Rows;
    template <typename T, typename Index>
    void gather(const T* x, const Index* indices, T* y, std::int64_t begin, std::int64_t end, FirstOf& bad) const;

    std::size_t axis_;
    Dims strides_;  // of x
};

// x: [*batch, *a, *b]; indices: int64 [*batch, *c, len(a)]; y: [*batch, *c, *b].
class GatherND final : public Kernel {
  public:
    GatherND(Dims x, Dims indices, std::int64_t batch_dims, ElementType type, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    IndexTuples tuples_;
};

}  // namespace

Gather::Gather(Dims x, Dims indices, std::int64_t axis, ElementType type, ElementType index_type, int threads)
    : Kernel("Gather", threads), axis_(checked_axis(axis, x.size())) {
    with_index(index_type, [](auto) {});
    const auto at = static_cast<std::ptrdiff_t>(axis_);
    Dims y(x.begin(), x.begin() + at);
    y.insert(y.end(), indices.begin(), indices.end());
    y.insert(y.end(), x.begin() + at + 1, x.end());
    around_ = AroundAxis(x, axis_);
    inputs_ = {{"x", std::move(x), type}, {"indices", std::move(indices), index_type}};
    outputs_ = {{"y", std::move(y), type}};
}

void Gather::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    const auto* x = static_cast<const std::byte*>(inputs[0]);
    auto* y = static_cast<std::byte*>(outputs[0]);
    const std::int64_t bytes = around_.inner * static_cast<std::int64_t>(size_of(inputs_[0].type));
    const std::int64_t taken = count(inputs_[1].shape);
    const std::int64_t size = around_.size;
    with_index(inputs_[1].type, [&](auto index) {
        const auto* indices = static_cast<const decltype(index)*>(inputs[1]);
        check_indices(*this, indices, taken, axis_, size);
        copy_slices(threads(), x, y, around_.outer, taken, bytes,
                    [=](std::int64_t outer, std::int64_t i) { return outer * size + from_front(indices[i], size); });
    });
}

GatherElements::GatherElements(Dims x, Dims indices, std::int64_t axis, ElementType type, ElementType index_type,
                               int threads)
    : Kernel("GatherElements", threads), axis_(checked_axis(axis, x.size())), strides_(row_major(x)) {
    with_index(index_type, [](auto) {});
    outputs_ = {{"y", indices, type}};
    inputs_ = {{"x", std::move(x), type}, {"indices", std::move(indices), index_type}};
    require_fibres(*this, inputs_[0].shape, inputs_[1].shape, axis_);
}

// Iterates over rows of indices. For each row, gives the place in x that its first element would have with index 0.
class GatherElements::Rows {
  public:
    Rows(const GatherElements& kernel, std::int64_t row)
        : shape_(kernel.inputs_[1].shape), steps_(kernel.strides_), position_(shape_.size()) {
        steps_[kernel.axis_] = 0;
        for (std::size_t i = shape_.size() - 1; i-- > 0;) {
            position_[i] = row % shape_[i];
            row /= shape_[i];
            base_ += position_[i] * steps_[i];
        }
    }

    std::int64_t base() const { return base_; }
    void next() {
        for (std::size_t i = shape_.size() - 1; i-- > 0;) {
            base_ += steps_[i];
            if (++position_[i] < shape_[i]) {
                return;
            }
            base_ -= shape_[i] * steps_[i];
            position_[i] = 0;
        }
    }

  private:
    const Dims& shape_;
    Dims steps_;
    Dims position_;
    std::int64_t base_ = 0;
};

template <typename T, typename Index>
void GatherElements::gather(const T* x, const Index* indices, T* y, std::int64_t begin, std::int64_t end,
                            FirstOf& bad) const {
    constexpr std::int64_t kChecked = 1024;  // indices that stay in the first-level cache
    const std::int64_t columns = inputs_[1].shape.back();
    const std::int64_t size = inputs_[0].shape[axis_];
    const std::int64_t stride = strides_[axis_];
    const bool last = axis_ + 1 == inputs_[1].shape.size();
    Rows rows(*this, begin / columns);
    std::int64_t column = begin % columns;
    std::int64_t checked = begin;
    bool negative = false;
    for (std::int64_t at = begin; at < end;) {
        if (at == checked) {
            const std::int64_t length = std::min(kChecked, end - at);
            const IndexSigns signs = index_signs(indices + at, length, size);
            if (signs.any_outside()) {
                return bad.found(first_outside(indices, at, at + length, size));
            }
            negative = signs.any_negative();
            checked += length;
        }
        const std::int64_t run = std::min(columns - column, checked - at);
        const Index* const chosen = indices + at;
        T* const to = y + at;
        const T* const from = x + rows.base() + (last ? 0 : column);
        const auto take = [=](auto place) {
#pragma GCC unroll 8
            for (std::int64_t j = 0; j < run; ++j) {
                to[j] = from[place(chosen[j], j)];
            }
        };
        // Fewer operations per element, so that the processor can have more loads in flight.
        if (last && !negative) {
            take([](Index index, std::int64_t) { return static_cast<std::int64_t>(index); });
        } else if (last) {
            take([=](Index index, std::int64_t) { return from_front(index, size); });
        } else if (!negative) {
            take([=](Index index, std::int64_t j) { return static_cast<std::int64_t>(index) * stride + j; });
        } else {
            take([=](Index index, std::int64_t j) { return from_front(index, size) * stride + j; });
        }
        at += run;
        column += run;
        if (column == columns) {
            column = 0;
            rows.next();
        }
    }
}

void GatherElements::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    with_index(inputs_[1].type, [&](auto index) {
        const auto* indices = static_cast<const decltype(index)*>(inputs[1]);
        FirstOf bad;
        with_element(size_of(inputs_[0].type), [&](auto element) {
            using T = decltype(element);
            const auto* x = static_cast<const T*>(inputs[0]);
            auto* y = static_cast<T*>(outputs[0]);
            parallel_for(
                threads(), count(inputs_[1].shape), 1,
                [&](std::int64_t begin, std::int64_t end) { gather(x, indices, y, begin, end, bad); }, 64);
        });
        require_none(bad, *this, indices, axis_, inputs_[0].shape[axis_]);
    });
}

GatherND::GatherND(Dims x, Dims indices, std::int64_t batch_dims, ElementType type, int threads)
    : Kernel("GatherND", threads) {
    inputs_ = {{"x", std::move(x), type}, {"indices", std::move(indices), ElementType::i64}};
    tuples_ = IndexTuples(*this, inputs_[0].shape, inputs_[1].shape, batch_dims);
    Dims y(inputs_[1].shape.begin(), inputs_[1].shape.end() - 1);
    const auto below = static_cast<std::ptrdiff_t>(tuples_.first_axis + tuples_.sizes.size());
    y.insert(y.end(), inputs_[0].shape.begin() + below, inputs_[0].shape.end());
    outputs_ = {{"y", std::move(y), type}};
}

std::size_t GatherND::scratch_bytes() const {
    return static_cast<std::size_t>(tuples_.tuples) * sizeof(std::int64_t);
}

void GatherND::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    auto* slices = reinterpret_cast<std::int64_t*>(scratch);
    tuples_.resolve(*this, static_cast<const std::int64_t*>(inputs[1]), slices);
    const std::int64_t bytes = tuples_.slice * static_cast<std::int64_t>(size_of(inputs_[0].type));
    copy_slices(threads(), static_cast<const std::byte*>(inputs[0]), static_cast<std::byte*>(outputs[0]), 1,
                tuples_.tuples, bytes, [=](std::int64_t, std::int64_t i) { return slices[i]; });
}

GRAPHKIT_KERNEL_READING("", Gather) {
    const TensorSpec &x = node.input(0).tensor, &indices = node.input(1).tensor;
    return std::make_unique<Gather>(x.shape, indices.shape, node.integer("axis"), x.type, indices.type, node.threads);
}

GRAPHKIT_KERNEL_READING("", GatherElements) {
    const TensorSpec &x = node.input(0).tensor, &indices = node.input(1).tensor;
    return std::make_unique<GatherElements>(x.shape, indices.shape, node.integer("axis"), x.type, indices.type,
                                            node.threads);
}

GRAPHKIT_KERNEL_READING("", GatherND) {
    const TensorSpec& x = node.input(0).tensor;
    return std::make_unique<GatherND>(x.shape, node.input(1).tensor.shape, node.integer("batch_dims"), x.type,
                                      node.threads);
}

GRAPHKIT_BINDINGS(gather) {
    nb::class_<Gather, Kernel>(m, "Gather")
        .def(
            "__init__",
            [](Gather* self, Dims x, Dims indices, std::int64_t axis, Text dtype, Text index_dtype, int threads) {
                new (self) Gather(std::move(x), std::move(indices), axis, element_type(dtype),
                                  element_type(index_dtype), threads);
            },
            "x"_a, "indices"_a, "axis"_a, "dtype"_a, "index_dtype"_a = "int64", "threads"_a = 0);
    nb::class_<GatherElements, Kernel>(m, "GatherElements")
        .def(
            "__init__",
            [](GatherElements* self, Dims x, Dims indices, std::int64_t axis, Text dtype, Text index_dtype,
               int threads) {
                new (self) GatherElements(std::move(x), std::move(indices), axis, element_type(dtype),
                                          element_type(index_dtype), threads);
            },
            "x"_a, "indices"_a, "axis"_a, "dtype"_a, "index_dtype"_a = "int64", "threads"_a = 0);
    nb::class_<GatherND, Kernel>(m, "GatherND")
        .def(
            "__init__",
            [](GatherND* self, Dims x, Dims indices, std::int64_t batch_dims, Text dtype, int threads) {
                new (self) GatherND(std::move(x), std::move(indices), batch_dims, element_type(dtype), threads);
            },
            "x"_a, "indices"_a, "batch_dims"_a, "dtype"_a, "threads"_a = 0);
}

}  // namespace graphkit
