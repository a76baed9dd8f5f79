// Writes updates to elements that indices address, or combines updates with them. The updates of an element are applied
// in their order, for any number of threads. float16 and bfloat16 are combined in float and rounded once. If an index
// is outside of its axis, run throws NativeError before anything is written.
#include <algorithm>

#include "kernels/scatter/rules.h"
#include "primitives/indices.h"
#include "runtime/bindings.h"
#include "runtime/kernel.h"
#include "runtime/operator_kernels.h"
#include "simd/half_convert.h"

namespace graphkit {
namespace {

// The elements that updates are combined with, and the rule.
struct Elements {
    std::byte* y;
    const ScatterRule* rule;
};

// y = x, with updates[i, j, ...] at position indices[i, j, ...] of `axis`. Any element type. y may share the memory of
// x.
class ScatterElements final : public Kernel {
  public:
    ScatterElements(Dims x, Dims indices, std::int64_t axis, ScatterReduction reduction, ElementType type,
                    ElementType index_type, int threads);

    std::size_t scratch_bytes() const override;
    std::vector<std::pair<int, int>> inplace() const override { return {{0, 0}}; }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    void combine_lines(Elements y, const std::byte* updates, const void* indices) const;

    std::size_t axis_;
    ScatterReduction reduction_;
    Dims strides_;  // of x
};

// y = x: [*a, *b], with slices at index tuples replaced or combined; indices: int64 [*c, len(a)]; updates: [*c, *b]. y
// may share the memory of x.
class ScatterND final : public Kernel {
  public:
    ScatterND(Dims x, Dims indices, ScatterReduction reduction, ElementType type, int threads);

    std::size_t scratch_bytes() const override;
    std::vector<std::pair<int, int>> inplace() const override { return {{0, 0}}; }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    IndexTuples tuples_;
    ScatterReduction reduction_;
};

// dx = zeros of x's shape, with each slice of dy added at its index; float types. Operands: dy, x (not read), indices.
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

inline bool is_half(ElementType type) {
    return type == ElementType::f16 || type == ElementType::bf16;
}

// Whether elements are combined in a wider type, and are kept in scratch memory meanwhile.
bool needs_wide(ElementType type, ScatterReduction reduction) {
    return is_half(type) && reduction != ScatterReduction::none;
}

std::size_t wide_bytes(ElementType type, ScatterReduction reduction, std::int64_t elements) {
    const auto bytes = needs_wide(type, reduction) ? static_cast<std::size_t>(elements) * sizeof(float) : 0;
    return aligned(bytes);
}

// Converts float16 or bfloat16 elements to float, and back.
void widened_all(int threads, ElementType type, const void* from, float* to, std::int64_t count) {
    parallel_for(threads, count, 1, [&](std::int64_t begin, std::int64_t end) {
        if (type == ElementType::f16) {
            widen(static_cast<const Float16*>(from) + begin, to + begin, end - begin);
        } else {
            widen(static_cast<const BFloat16*>(from) + begin, to + begin, end - begin);
        }
    });
}

void narrowed_all(int threads, ElementType type, const float* from, void* to, std::int64_t count) {
    parallel_for(threads, count, 2, [&](std::int64_t begin, std::int64_t end) {
        if (type == ElementType::f16) {
            narrow(from + begin, static_cast<Float16*>(to) + begin, end - begin);
        } else {
            narrow(from + begin, static_cast<BFloat16*>(to) + begin, end - begin);
        }
    });
}

// Calls body(elements) with the elements of y, which begin as those of x, in the type in which they are combined.
template <typename Body>
void on_elements(const Kernel& kernel, ScatterReduction reduction, const void* x, void* y, std::int64_t elements,
                 std::byte* wide, Body&& body) {
    const ElementType type = kernel.inputs()[0].type;
    const ScatterRule* rule = scatter_rule(type, reduction);
    if (needs_wide(type, reduction)) {
        auto* values = reinterpret_cast<float*>(wide);
        widened_all(kernel.threads(), type, x, values, elements);
        body(Elements{wide, rule});
        narrowed_all(kernel.threads(), type, values, y, elements);
        return;
    }
    auto* const to = static_cast<std::byte*>(y);
    if (x != y) {
        copy(kernel.threads(), to, static_cast<const std::byte*>(x), elements * rule->element_bytes);
    }
    body(Elements{to, rule});
}

// For each slice of the updates, the index of its slice of y, counted from the end if negative.
struct Targets {
    ElementType type;
    const void* indices;
    std::int64_t updates;
    std::int64_t slices;
};

// Applies all updates to a part of y's slices, in their order.
void combine_part(const Elements& elements, const std::byte* updates, const Targets& targets, std::int64_t slice,
                  std::int64_t begin, std::int64_t end, std::int64_t first, std::int64_t last) {
    const auto combine = elements.rule->slices[ScatterRule::number_of(targets.type)];
    combine(elements.y, updates, targets.indices, {targets.updates, slice, targets.slices, begin, end, first, last});
}

// Combines the slices of the updates with their slices of y. Each thread computes some columns of all slices or, if
// slices are short, some whole slices.
void combine_slices(int threads, const Elements& elements, const std::byte* updates, const Targets& targets,
                    std::int64_t slice) {
    const std::int64_t kColumns = 64 / elements.rule->element_bytes;
    const auto total = static_cast<double>(targets.updates);
    const double work = static_cast<double>(slice * elements.rule->element_bytes) * 2 / kBytesPerNanosecond + 2;
    if (slice >= kColumns * threads) {
        parallel_for(
            threads, slice, total * work / static_cast<double>(slice),
            [&](std::int64_t begin, std::int64_t end) {
                combine_part(elements, updates, targets, slice, 0, targets.slices, begin, end);
            },
            kColumns);
        return;
    }
    parallel_for(threads, targets.slices, total * work / static_cast<double>(std::max<std::int64_t>(targets.slices, 1)),
                 [&](std::int64_t begin, std::int64_t end) {
                     combine_part(elements, updates, targets, slice, begin, end, 0, slice);
                 });
}

}  // namespace

ScatterElements::ScatterElements(Dims x, Dims indices, std::int64_t axis, ScatterReduction reduction, ElementType type,
                                 ElementType index_type, int threads)
    : Kernel("ScatterElements", threads),
      axis_(checked_axis(axis, x.size())),
      reduction_(reduction),
      strides_(row_major(x)) {
    with_index(index_type, [](auto) {});
    outputs_ = {{"y", x, type}};
    inputs_ = {{"x", std::move(x), type}, {"indices", indices, index_type}, {"updates", indices, type}};
    require_fibres(*this, inputs_[0].shape, inputs_[1].shape, axis_);
}

std::size_t ScatterElements::scratch_bytes() const {
    return wide_bytes(inputs_[0].type, reduction_, count(inputs_[0].shape));
}

void ScatterElements::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const Dims& shape = inputs_[1].shape;
    with_index(inputs_[1].type, [&](auto index) {
        check_indices(*this, static_cast<const decltype(index)*>(inputs[1]), count(shape), axis_,
                      inputs_[0].shape[axis_]);
    });
    on_elements(*this, reduction_, inputs[0], outputs[0], count(inputs_[0].shape), scratch, [&](const Elements& y) {
        if (count(shape) != 0) {
            combine_lines(y, static_cast<const std::byte*>(inputs[2]), inputs[1]);
        }
    });
}

// Threads share the lines along the axis: different lines have no elements in common.
void ScatterElements::combine_lines(Elements y, const std::byte* updates, const void* indices) const {
    const ScatterRule& rule = *y.rule;
    const Dims& shape = inputs_[1].shape;
    const std::int64_t size = inputs_[0].shape[axis_];
    const std::int64_t length = shape[axis_];
    const Dims steps = row_major(shape);
    const bool is_last = axis_ + 1 == shape.size();
    const std::int64_t columns = is_last ? 1 : shape.back();
    const std::int64_t lines = count(shape) / length;
    const ElementType type = inputs_[1].type;
    const auto combine = rule.elements[ScatterRule::number_of(type)];
    const auto index_bytes = static_cast<std::int64_t>(size_of(type));
    parallel_for(threads(), lines, 3 * static_cast<double>(length), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t at = begin; at < end;) {
            const std::int64_t first = at % columns;
            const std::int64_t last = std::min(columns, first + end - at);
            std::int64_t rest = at / columns;
            std::int64_t to = 0;
            std::int64_t from = 0;
            for (std::size_t i = shape.size() - 1; i-- > 0;) {
                if (i != axis_) {
                    to += rest % shape[i] * strides_[i];
                    from += rest % shape[i] * steps[i];
                    rest /= shape[i];
                }
            }
            combine(y.y + (to + first) * rule.element_bytes, updates + (from + first) * rule.update_bytes,
                    static_cast<const std::byte*>(indices) + (from + first) * index_bytes,
                    {length, last - first, steps[axis_], size, strides_[axis_]});
            at += last - first;
        }
    });
}

ScatterND::ScatterND(Dims x, Dims indices, ScatterReduction reduction, ElementType type, int threads)
    : Kernel("ScatterND", threads), reduction_(reduction) {
    outputs_ = {{"y", x, type}};
    inputs_ = {{"x", std::move(x), type}, {"indices", std::move(indices), ElementType::i64}};
    tuples_ = IndexTuples(*this, inputs_[0].shape, inputs_[1].shape, 0);
    Dims updates(inputs_[1].shape.begin(), inputs_[1].shape.end() - 1);
    updates.insert(updates.end(), inputs_[0].shape.begin() + static_cast<std::ptrdiff_t>(tuples_.sizes.size()),
                   inputs_[0].shape.end());
    inputs_.push_back({"updates", std::move(updates), type});
}

std::size_t ScatterND::scratch_bytes() const {
    return wide_bytes(inputs_[0].type, reduction_, count(inputs_[0].shape)) +
           static_cast<std::size_t>(tuples_.tuples) * sizeof(std::int64_t);
}

void ScatterND::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const std::int64_t elements = count(inputs_[0].shape);
    auto* slices = reinterpret_cast<std::int64_t*>(scratch + wide_bytes(inputs_[0].type, reduction_, elements));
    tuples_.resolve(*this, static_cast<const std::int64_t*>(inputs[1]), slices);
    const Targets targets{ElementType::i64, slices, tuples_.tuples, count(tuples_.sizes)};
    on_elements(*this, reduction_, inputs[0], outputs[0], elements, scratch, [&](const Elements& y) {
        combine_slices(threads(), y, static_cast<const std::byte*>(inputs[2]), targets, tuples_.slice);
    });
}

GatherGrad::GatherGrad(Dims x, ElementType x_type, Dims indices, std::int64_t axis, ElementType type,
                       ElementType index_type, int threads)
    : Kernel("GatherGrad", threads), around_(x, checked_axis(axis, x.size())), axis_(checked_axis(axis, x.size())) {
    with_index(index_type, [](auto) {});
    const auto at = static_cast<std::ptrdiff_t>(axis_);
    Dims dy(x.begin(), x.begin() + at);
    dy.insert(dy.end(), indices.begin(), indices.end());
    dy.insert(dy.end(), x.begin() + at + 1, x.end());
    outputs_ = {{"dx", x, type}};
    inputs_ = {
        {"dy", std::move(dy), type}, {"x", std::move(x), x_type, true}, {"indices", std::move(indices), index_type}};
    if (!is_half(type) && type != ElementType::f32 && type != ElementType::f64) {
        throw Unsupported(describe() + ": not a float type");
    }
}

std::size_t GatherGrad::scratch_bytes() const {
    return wide_bytes(inputs_[0].type, ScatterReduction::add, count(outputs_[0].shape));
}

void GatherGrad::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const std::int64_t taken = count(inputs_[2].shape);
    const std::int64_t elements = count(outputs_[0].shape);
    const auto [outer, size, inner] = around_;
    const ElementType type = inputs_[0].type;
    with_index(inputs_[2].type, [&, size = size](auto index) {
        check_indices(*this, static_cast<const decltype(index)*>(inputs[2]), taken, axis_, size);
    });
    std::byte* const dx = is_half(type) ? scratch : static_cast<std::byte*>(outputs[0]);
    const ScatterRule* rule = scatter_rule(type, ScatterReduction::add);
    clear(threads(), dx, elements * rule->element_bytes);
    const Targets targets{inputs_[2].type, inputs[2], taken, size};
    const auto one = [&, inner = inner](int team, std::int64_t o) {
        const auto* dy = static_cast<const std::byte*>(inputs[0]) + o * taken * inner * rule->update_bytes;
        combine_slices(team, {dx + o * targets.slices * inner * rule->element_bytes, rule}, dy, targets, inner);
    };
    if (outer < threads()) {
        for (std::int64_t o = 0; o < outer; ++o) {
            one(threads(), o);
        }
    } else {
        const auto work = static_cast<double>(taken * inner);
        parallel_for(threads(), outer, work, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t o = begin; o < end; ++o) {
                one(1, o);
            }
        });
    }
    if (is_half(type)) {
        narrowed_all(threads(), type, reinterpret_cast<const float*>(scratch), outputs[0], elements);
    }
}

GRAPHKIT_KERNEL("ai.graphkit", GatherGrad) {
    const TensorSpec &dy = node.input(0).tensor, &x = node.input(1).tensor, &indices = node.input(2).tensor;
    return std::make_unique<GatherGrad>(x.shape, x.type, indices.shape, node.integer("axis"), dy.type, indices.type,
                                        node.threads);
}

GRAPHKIT_KERNEL_READING("", ScatterElements) {
    const TensorSpec &x = node.input(0).tensor, &indices = node.input(1).tensor;
    if (node.input(2).tensor.shape != indices.shape) {
        throw Unsupported("updates that are broadcast");
    }
    return std::make_unique<ScatterElements>(x.shape, indices.shape, node.integer("axis"),
                                             scatter_reduction(node.text("reduction")), x.type, indices.type,
                                             node.threads);
}

GRAPHKIT_KERNEL_READING("", ScatterND) {
    const TensorSpec &x = node.input(0).tensor, &indices = node.input(1).tensor;
    const std::int64_t depth = indices.shape.back();
    Dims updates(indices.shape.begin(), indices.shape.end() - 1);
    updates.insert(updates.end(), x.shape.begin() + depth, x.shape.end());
    if (node.input(2).tensor.shape != updates) {
        throw Unsupported("updates that are broadcast");
    }
    return std::make_unique<ScatterND>(x.shape, indices.shape, scatter_reduction(node.text("reduction")), x.type,
                                       node.threads);
}

GRAPHKIT_BINDINGS(scatter) {
    nb::class_<ScatterElements, Kernel>(m, "ScatterElements")
        .def(
            "__init__",
            [](ScatterElements* self, Dims x, Dims indices, std::int64_t axis, Text reduction, Text dtype,
               Text index_dtype, int threads) {
                new (self) ScatterElements(std::move(x), std::move(indices), axis, scatter_reduction(reduction),
                                           element_type(dtype), element_type(index_dtype), threads);
            },
            "x"_a, "indices"_a, "axis"_a, "reduction"_a, "dtype"_a, "index_dtype"_a = "int64", "threads"_a = 0);
    nb::class_<ScatterND, Kernel>(m, "ScatterND")
        .def(
            "__init__",
            [](ScatterND* self, Dims x, Dims indices, Text reduction, Text dtype, int threads) {
                new (self) ScatterND(std::move(x), std::move(indices), scatter_reduction(reduction),
                                     element_type(dtype), threads);
            },
            "x"_a, "indices"_a, "reduction"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<GatherGrad, Kernel>(m, "GatherGrad")
        .def(
            "__init__",
            [](GatherGrad* self, Dims x, Text x_dtype, Dims indices, std::int64_t axis, Text dtype, Text index_dtype,
               int threads) {
                new (self) GatherGrad(std::move(x), element_type(x_dtype), std::move(indices), axis,
                                      element_type(dtype), element_type(index_dtype), threads);
            },
            "x"_a, "x_dtype"_a, "indices"_a, "axis"_a, "dtype"_a, "index_dtype"_a = "int64", "threads"_a = 0);
}

}  // namespace graphkit
