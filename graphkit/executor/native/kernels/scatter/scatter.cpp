// Updates written to, or combined with, elements that indices address. Each element meets its updates in their order,
// for any number of threads; half floats are combined in float and rounded once. Indices outside their axis throw
// NativeError from run, before anything is written.
#include <type_traits>

#include "primitives/indices.h"
#include "runtime/bindings.h"
#include "runtime/kernel.h"
#include "simd/half_convert.h"

namespace graphkit {
namespace {

enum class Reduction : std::uint8_t { none, add, mul, min, max };

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

template <typename T>
constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

// What elements are combined in.
template <typename T>
using Wide = std::conditional_t<kIsHalf<T>, float, T>;

template <typename T>
inline Wide<T> widened(T value) {
    if constexpr (kIsHalf<T>) {
        return to_float(value);
    } else {
        return value;
    }
}

inline bool is_half(ElementType type) {
    return type == ElementType::f16 || type == ElementType::bf16;
}

// Integers wrap around: their sums and products are those of unsigned numbers that do not promote to int.
template <typename T, typename Combine>
inline T wrapping(T a, T b, Combine&& combine) {
    if constexpr (std::is_same_v<T, bool> || std::is_floating_point_v<T>) {
        return static_cast<T>(combine(a, b));
    } else {
        return static_cast<T>(combine(static_cast<std::uint64_t>(a), static_cast<std::uint64_t>(b)));
    }
}

struct Replace {
    template <typename T>
    static T combine(T, T update) {
        return update;
    }
};

struct Sum {
    template <typename T>
    static T combine(T a, T b) {
        return wrapping(a, b, [](auto p, auto q) { return p + q; });
    }
};

struct Product {
    template <typename T>
    static T combine(T a, T b) {
        return wrapping(a, b, [](auto p, auto q) { return p * q; });
    }
};

// NaN wins, the first one of two.
struct Minimum {
    template <typename T>
    static T combine(T a, T b) {
        return a < b || a != a ? a : b;
    }
};

struct Maximum {
    template <typename T>
    static T combine(T a, T b) {
        return a > b || a != a ? a : b;
    }
};

template <typename Body>
void with_reduction(Reduction reduction, Body&& body) {
    switch (reduction) {
        case Reduction::none:
            throw NativeError("replacing needs no types");
        case Reduction::add:
            return body(Sum{});
        case Reduction::mul:
            return body(Product{});
        case Reduction::min:
            return body(Minimum{});
        case Reduction::max:
            return body(Maximum{});
    }
}

// Calls body with the C++ type and the rule; replacing knows elements by their size alone.
template <typename Body>
void with_rule(ElementType type, Reduction reduction, Body&& body) {
    if (reduction == Reduction::none) {
        return with_element(size_of(type), [&](auto element) {
            if constexpr (!std::is_same_v<decltype(element), Block16>) {
                body(element, Replace{});
            }
        });
    }
    with_type(type, [&](auto element) { with_reduction(reduction, [&](auto rule) { body(element, rule); }); });
}

// Elements that are combined in a wider type live in scratch memory meanwhile.
bool needs_wide(ElementType type, Reduction reduction) {
    return is_half(type) && reduction != Reduction::none;
}

std::size_t wide_bytes(ElementType type, Reduction reduction, std::int64_t elements) {
    const auto bytes = needs_wide(type, reduction) ? static_cast<std::size_t>(elements) * sizeof(float) : 0;
    return aligned(bytes);
}

// Calls body(pointer) on the elements of y, which start as x, in the type that they are combined in.
template <typename T, typename Rule, typename Body>
void on_elements(int threads, const void* x, void* y, std::int64_t elements, std::byte* wide, Rule, Body&& body) {
    if constexpr (kIsHalf<T> && !std::is_same_v<Rule, Replace>) {
        auto* values = reinterpret_cast<float*>(wide);
        const auto* from = static_cast<const T*>(x);
        auto* to = static_cast<T*>(y);
        parallel_for(threads, elements, 1,
                     [&](std::int64_t begin, std::int64_t end) { widen(from + begin, values + begin, end - begin); });
        body(values);
        parallel_for(threads, elements, 2,
                     [&](std::int64_t begin, std::int64_t end) { narrow(values + begin, to + begin, end - begin); });
    } else {
        if (x != y) {
            copy(threads, static_cast<std::byte*>(y), static_cast<const std::byte*>(x),
                 elements * static_cast<std::int64_t>(sizeof(T)));
        }
        body(static_cast<T*>(y));
    }
}

template <typename Rule, typename E, typename U>
inline void combine_slice(E* y, const U* updates, std::int64_t size) {
    for (std::int64_t i = 0; i < size; ++i) {
        y[i] = Rule::template combine<E>(y[i], widened(updates[i]));
    }
}

// Combines update slice u with slice target(u) of y, which has `slices`. A thread owns columns of all slices or, where
// slices are short, some slices whole.
template <typename Rule, typename E, typename U, typename Target>
void combine_slices(int threads, E* y, std::int64_t slices, const U* updates, std::int64_t count_of_updates,
                    std::int64_t slice, Target&& target) {
    constexpr std::int64_t kColumns = 64 / sizeof(E);
    const auto total = static_cast<double>(count_of_updates);
    const double work = static_cast<double>(slice * static_cast<std::int64_t>(sizeof(E))) * 2 / kBytesPerNanosecond + 2;
    if (slice >= kColumns * threads) {
        parallel_for(
            threads, slice, total * work / static_cast<double>(slice),
            [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t u = 0; u < count_of_updates; ++u) {
                    combine_slice<Rule>(y + target(u) * slice + begin, updates + u * slice + begin, end - begin);
                }
            },
            kColumns);
        return;
    }
    parallel_for(threads, slices, total * work / static_cast<double>(std::max<std::int64_t>(slices, 1)),
                 [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t u = 0; u < count_of_updates; ++u) {
                         const std::int64_t at = target(u);
                         if (at >= begin && at < end) {
                             combine_slice<Rule>(y + at * slice, updates + u * slice, slice);
                         }
                     }
                 });
}

// By ONNX's name. Throws NativeError for any other.
Reduction reduction_named(const std::string& name) {
    constexpr const char* kNames[] = {"none", "add", "mul", "min", "max"};
    for (std::size_t i = 0; i < std::size(kNames); ++i) {
        if (name == kNames[i]) {
            return static_cast<Reduction>(i);
        }
    }
    throw NativeError("no reduction '" + name + "'");
}

}  // namespace

ScatterElements::ScatterElements(Dims x, Dims indices, std::int64_t axis, Reduction reduction, ElementType type,
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
        const auto* indices = static_cast<const decltype(index)*>(inputs[1]);
        check_indices(*this, indices, count(shape), axis_, inputs_[0].shape[axis_]);
        with_rule(inputs_[0].type, reduction_, [&](auto element, auto rule) {
            using T = decltype(element);
            on_elements<T>(threads(), inputs[0], outputs[0], count(inputs_[0].shape), scratch, rule, [&](auto* y) {
                if (count(shape) != 0) {
                    apply(y, static_cast<const T*>(inputs[2]), indices, rule);
                }
            });
        });
    });
}

// Threads share the lines along the axis, which have no elements in common.
template <typename Element, typename Update, typename Index, typename Combine>
void ScatterElements::apply(Element* y, const Update* updates, const Index* indices, Combine&&) const {
    using Rule = std::remove_cvref_t<Combine>;
    const Dims& shape = inputs_[1].shape;
    const std::int64_t size = inputs_[0].shape[axis_];
    const std::int64_t length = shape[axis_];
    const Dims steps = row_major(shape);
    const bool is_last = axis_ + 1 == shape.size();
    const std::int64_t columns = is_last ? 1 : shape.back();
    const std::int64_t lines = count(shape) / length;
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
            for (std::int64_t a = 0; a < length; ++a) {
                const std::int64_t row = from + a * steps[axis_];
                for (std::int64_t j = first; j < last; ++j) {
                    Element& target = y[to + from_front(indices[row + j], size) * strides_[axis_] + j];
                    target = Rule::template combine<Element>(target, widened(updates[row + j]));
                }
            }
            at += last - first;
        }
    });
}

ScatterND::ScatterND(Dims x, Dims indices, Reduction reduction, ElementType type, int threads)
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
    with_rule(inputs_[0].type, reduction_, [&](auto element, auto rule) {
        using T = decltype(element);
        on_elements<T>(threads(), inputs[0], outputs[0], elements, scratch, rule, [&](auto* y) {
            combine_slices<decltype(rule)>(threads(), y, count(tuples_.sizes), static_cast<const T*>(inputs[2]),
                                           tuples_.tuples, tuples_.slice, [&](std::int64_t u) { return slices[u]; });
        });
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
    return wide_bytes(inputs_[0].type, Reduction::add, count(outputs_[0].shape));
}

void GatherGrad::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const std::int64_t taken = count(inputs_[2].shape);
    const std::int64_t elements = count(outputs_[0].shape);
    const auto [outer, size, inner] = around_;
    const auto add = [&](const auto* indices, const auto* dy, auto* dx) {
        using E = std::remove_cvref_t<decltype(*dx)>;
        clear(threads(), reinterpret_cast<std::byte*>(dx), elements * static_cast<std::int64_t>(sizeof(E)));
        const auto one = [&](int team, std::int64_t o) {
            combine_slices<Sum>(team, dx + o * size * inner, size, dy + o * taken * inner, taken, inner,
                                [&](std::int64_t u) { return from_front(indices[u], size); });
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
    };
    with_index(inputs_[2].type, [&](auto index) {
        const auto* indices = static_cast<const decltype(index)*>(inputs[2]);
        check_indices(*this, indices, taken, axis_, size);
        with_type(inputs_[0].type, [&](auto element) {
            using T = decltype(element);
            const auto* dy = static_cast<const T*>(inputs[0]);
            if constexpr (kIsHalf<T>) {
                auto* wide = reinterpret_cast<float*>(scratch);
                add(indices, dy, wide);
                parallel_for(threads(), elements, 2, [&](std::int64_t begin, std::int64_t end) {
                    narrow(wide + begin, static_cast<T*>(outputs[0]) + begin, end - begin);
                });
            } else if constexpr (std::is_floating_point_v<T>) {
                add(indices, dy, static_cast<T*>(outputs[0]));
            }
        });
    });
}

GRAPHKIT_BINDINGS(scatter) {
    nb::class_<ScatterElements, Kernel>(m, "ScatterElements")
        .def(
            "__init__",
            [](ScatterElements* self, Dims x, Dims indices, std::int64_t axis, Text reduction, Text dtype,
               Text index_dtype, int threads) {
                new (self) ScatterElements(std::move(x), std::move(indices), axis, reduction_named(reduction),
                                           element_type(dtype), element_type(index_dtype), threads);
            },
            "x"_a, "indices"_a, "axis"_a, "reduction"_a, "dtype"_a, "index_dtype"_a = "int64", "threads"_a = 0);
    nb::class_<ScatterND, Kernel>(m, "ScatterND")
        .def(
            "__init__",
            [](ScatterND* self, Dims x, Dims indices, Text reduction, Text dtype, int threads) {
                new (self) ScatterND(std::move(x), std::move(indices), reduction_named(reduction), element_type(dtype),
                                     threads);
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
