// Running totals along an axis: CumSum, CumProd, and the first-order linear recurrence.
#include <algorithm>
#include <type_traits>

#include "kernels/cumulative/cumulative_table.h"
#include "primitives/elements.h"
#include "runtime/bindings.h"
#include "runtime/kernel.h"
#include "runtime/operator_kernels.h"
#include "runtime/threads.h"
#include "simd/half_convert.h"

namespace graphkit {
namespace {

// Sums (or, with `product`, products) of the elements up to each position. exclusive: without the element at the
// position; reverse: from the end. Floats, and integers of 32 and 64 bits; float16 and bfloat16 are computed in float.
// Totals are computed in the order of the axis, so they do not depend on the number of threads.
class Cumulative final : public Kernel {
  public:
    Cumulative(Dims x, std::int64_t axis, bool product, bool exclusive, bool reverse, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    AroundAxis around_;
    bool product_;
    bool exclusive_;
    bool reverse_;
};

// h[t] = a[t] * h[t - 1] + b[t] along an axis, beginning with h = 0; with `reverse`, from the end. float32 and float64.
class LinearRecurrence final : public Kernel {
  public:
    LinearRecurrence(Dims a, std::int64_t axis, bool reverse, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<std::pair<int, int>> inplace() const override { return {{0, 0}, {1, 0}}; }

  private:
    AroundAxis around_;
    bool reverse_;
};

// Number of adjacent columns that one pass along the axis computes: at most kColumns, about equally many in each
// pass, and fewer if threads would be idle, down to kFewestColumns.
constexpr std::int64_t kColumns = 1536;
constexpr std::int64_t kFewestColumns = 64;

std::int64_t columns_of(const AroundAxis& around, int threads) {
    const std::int64_t passes = std::max<std::int64_t>((around.inner + kColumns - 1) / kColumns, 1);
    const std::int64_t share = (around.inner + passes - 1) / passes;
    std::int64_t columns = (share + kFewestColumns - 1) / kFewestColumns * kFewestColumns;
    const auto parts = [&] { return around.outer * ((around.inner + columns - 1) / columns); };
    while (threads > 1 && columns > kFewestColumns && parts() < threads) {
        columns = (columns / 2 + kFewestColumns - 1) / kFewestColumns * kFewestColumns;
    }
    return columns;
}

// The type of the totals of T, and conversions to and from it. Integers are computed as unsigned, so that they wrap
// around.
template <typename T>
struct Totals {
    using type = T;
    static T of(T value) { return value; }
    static T to(T total) { return total; }
};

template <>
struct Totals<Float16> {
    using type = float;
    static float of(Float16 value) { return to_float(value); }
    static Float16 to(float total) { return to_float16(total); }
};

template <>
struct Totals<BFloat16> {
    using type = float;
    static float of(BFloat16 value) { return to_float(value); }
    static BFloat16 to(float total) { return to_bfloat16(total); }
};

struct Sum {
    static constexpr int kNeutral = 0;
    template <typename S>
    static S combine(S a, S b) {
        return a + b;
    }
};

struct Product {
    static constexpr int kNeutral = 1;
    template <typename S>
    static S combine(S a, S b) {
        return a * b;
    }
};

// Computes `size` steps, `stride` elements apart, for `columns` adjacent columns of x and y.
template <typename Rule, typename T>
void accumulate_columns(const T* x, T* y, std::int64_t size, std::int64_t stride, std::int64_t columns,
                        bool exclusive) {
    using S = Totals<T>;
    using Total = typename S::type;
    if constexpr (std::is_same_v<T, Total>) {
        if (exclusive) {  // the other totals, one step later
            std::fill_n(y, columns, T{Rule::kNeutral});
            if (size > 1) {
                accumulate_columns<Rule>(x, y + stride, size - 1, stride, columns, false);
            }
            return;
        }
        if constexpr (std::is_floating_point_v<T>) {
            const auto& table = cumulative_table();
            const auto& functions = [&]() -> const auto& {
                if constexpr (std::is_same_v<T, float>) {
                    return table.f32;
                } else {
                    return table.f64;
                }
            }();
            const auto run = std::is_same_v<Rule, Sum> ? functions.sums : functions.products;
            run(x, y, size, stride, columns);
        } else {  // the totals are in y
            std::copy_n(x, columns, y);
            for (std::int64_t i = 1; i < size; ++i) {
                x += stride;
                const T* __restrict const before = y;
                y += stride;
                const T* __restrict const more = x;
                T* __restrict const to = y;
                for (std::int64_t c = 0; c < columns; ++c) {
                    to[c] = Rule::combine(before[c], more[c]);
                }
            }
        }
    } else {
        Total totals[kColumns];
        for (std::int64_t c = 0; c < columns; ++c) {
            totals[c] = S::of(x[c]);
            y[c] = exclusive ? S::to(Total{Rule::kNeutral}) : x[c];
        }
        for (std::int64_t i = 1; i < size; ++i) {
            x += stride;
            y += stride;
            for (std::int64_t c = 0; c < columns; ++c) {
                const Total before = totals[c];
                totals[c] = Rule::combine(before, S::of(x[c]));
                y[c] = S::to(exclusive ? before : totals[c]);
            }
        }
    }
}

// Computes `Rows` rows along the last axis at the same time, because each total depends on the previous one.
template <typename Rule, int Rows, typename T>
void accumulate_rows(const T* x, T* y, std::int64_t size, std::int64_t step, bool exclusive) {
    using S = Totals<T>;
    using Total = typename S::type;
    Total totals[Rows];
    for (int r = 0; r < Rows; ++r) {
        const T first = x[r * size];
        totals[r] = S::of(first);
        y[r * size] = exclusive ? S::to(Total{Rule::kNeutral}) : first;
    }
    for (std::int64_t i = 1; i < size; ++i) {
        x += step;
        y += step;
        for (int r = 0; r < Rows; ++r) {
            const Total before = totals[r];
            totals[r] = Rule::combine(before, S::of(x[r * size]));
            y[r * size] = S::to(exclusive ? before : totals[r]);
        }
    }
}

// If the axis is the last one, calls rows(first, count) for one or four rows; else calls columns(offset, count) for
// adjacent columns that one pass along the axis computes.
template <typename Rows, typename Columns>
void for_each_line(int threads, const AroundAxis& around, Rows&& rows, Columns&& columns) {
    const auto [outer, size, inner] = around;
    if (inner == 1) {
        parallel_calls(threads, outer, static_cast<double>(size), [&](std::int64_t begin, std::int64_t end) {
            std::int64_t row = begin;
            for (; row + 4 <= end; row += 4) {
                rows(row, std::integral_constant<int, 4>{});
            }
            for (; row < end; ++row) {
                rows(row, std::integral_constant<int, 1>{});
            }
        });
        return;
    }
    const std::int64_t most = columns_of(around, threads);
    const std::int64_t blocks = (inner + most - 1) / most;
    const double cost = static_cast<double>(size * std::min(most, inner)) * 0.3;
    parallel_calls(threads, outer * blocks, cost,
                   [&, size = size, inner = inner](std::int64_t begin, std::int64_t end) {
                       for (std::int64_t item = begin; item < end; ++item) {
                           const std::int64_t column = item % blocks * most;
                           columns(item / blocks * size * inner + column, std::min(most, inner - column));
                       }
                   });
}

template <typename Rule, typename T>
void accumulate(int threads, const AroundAxis& around, bool exclusive, bool reverse, const T* x, T* y) {
    const std::int64_t start = reverse ? (around.size - 1) * around.inner : 0;
    const std::int64_t step = reverse ? -around.inner : around.inner;
    x += start;
    y += start;
    for_each_line(
        threads, around,
        [=, size = around.size](std::int64_t row, auto count) {
            const std::int64_t at = row * size;
            accumulate_rows<Rule, decltype(count)::value>(x + at, y + at, size, step, exclusive);
        },
        [=, size = around.size](std::int64_t at, std::int64_t count) {
            accumulate_columns<Rule>(x + at, y + at, size, step, count, exclusive);
        });
}

// Computes `size` steps, `stride` elements apart, for `columns` columns that are `apart` elements from each other.
template <typename T>
void recur(const T* a, const T* b, T* h, std::int64_t size, std::int64_t stride, std::int64_t columns,
           std::int64_t apart) {
    T states[kColumns];
    for (std::int64_t c = 0; c < columns; ++c) {
        h[c * apart] = states[c] = b[c * apart];
    }
    for (std::int64_t i = 1; i < size; ++i) {
        a += stride;
        b += stride;
        h += stride;
        for (std::int64_t c = 0; c < columns; ++c) {
            h[c * apart] = states[c] = b[c * apart] + a[c * apart] * states[c];
        }
    }
}

}  // namespace

Cumulative::Cumulative(Dims x, std::int64_t axis, bool product, bool exclusive, bool reverse, ElementType type,
                       int threads)
    : Kernel(product ? "CumProd" : "CumSum", threads), product_(product), exclusive_(exclusive), reverse_(reverse) {
    around_ = AroundAxis(x, checked_axis(axis, x.size()));
    outputs_ = {{"y", x, type}};
    inputs_ = {{"x", std::move(x), type}};
    if (type == ElementType::boolean || size_of(type) == 1 || type == ElementType::i16 || type == ElementType::u16) {
        throw Unsupported(describe() + ": this element type has no native cumulative sum or product");
    }
}

void Cumulative::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    if (count(outputs_[0].shape) == 0) {
        return;
    }
    const auto run_as = [&]<typename T>(T) {
        const auto* x = static_cast<const T*>(inputs[0]);
        auto* y = static_cast<T*>(outputs[0]);
        if (product_) {
            accumulate<Product>(threads(), around_, exclusive_, reverse_, x, y);
        } else {
            accumulate<Sum>(threads(), around_, exclusive_, reverse_, x, y);
        }
    };
    switch (outputs_[0].type) {
        case ElementType::f32:
            return run_as(float{});
        case ElementType::f64:
            return run_as(double{});
        case ElementType::f16:
            return run_as(Float16{});
        case ElementType::bf16:
            return run_as(BFloat16{});
        case ElementType::i32:  // signed and unsigned totals have the same bits
        case ElementType::u32:
            return run_as(std::uint32_t{});
        case ElementType::i64:
        case ElementType::u64:
            return run_as(std::uint64_t{});
        default:
            throw NativeError(describe() + ": this element type has no native cumulative sum or product");
    }
}

LinearRecurrence::LinearRecurrence(Dims a, std::int64_t axis, bool reverse, ElementType type, int threads)
    : Kernel("LinearRecurrence", threads), reverse_(reverse) {
    around_ = AroundAxis(a, checked_axis(axis, a.size()));
    inputs_ = {{"a", a, type}, {"b", a, type}};
    outputs_ = {{"h", std::move(a), type}};
    if (type != ElementType::f32 && type != ElementType::f64) {
        throw Unsupported(describe() + ": not float32 or float64");
    }
}

void LinearRecurrence::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    if (count(outputs_[0].shape) == 0) {
        return;
    }
    const auto run_as = [&]<typename T>(T) {
        const std::int64_t start = reverse_ ? (around_.size - 1) * around_.inner : 0;
        const std::int64_t step = reverse_ ? -around_.inner : around_.inner;
        const T* a = static_cast<const T*>(inputs[0]) + start;
        const T* b = static_cast<const T*>(inputs[1]) + start;
        T* h = static_cast<T*>(outputs[0]) + start;
        for_each_line(
            threads(), around_,
            [=, size = around_.size](std::int64_t row, auto columns) {
                const std::int64_t at = row * size;
                recur(a + at, b + at, h + at, size, step, decltype(columns)::value, size);
            },
            [=, size = around_.size](std::int64_t at, std::int64_t columns) {
                recur(a + at, b + at, h + at, size, step, columns, 1);
            });
    };
    outputs_[0].type == ElementType::f32 ? run_as(float{}) : run_as(double{});
}

static std::unique_ptr<Kernel> cumulative_of(const NodeSpec& node, bool product) {
    const TensorSpec& x = node.input(0).tensor;
    return std::make_unique<Cumulative>(x.shape, node.elements(1).at(0), product, node.integer("exclusive") != 0,
                                        node.integer("reverse") != 0, x.type, node.threads);
}

GRAPHKIT_KERNEL_READING("", CumSum, 1) {
    return cumulative_of(node, false);
}

GRAPHKIT_KERNEL_READING("", CumProd, 1) {
    return cumulative_of(node, true);
}

GRAPHKIT_KERNEL("ai.graphkit", LinearRecurrence) {
    const TensorSpec& a = node.input(0).tensor;
    return std::make_unique<LinearRecurrence>(a.shape, node.integer("axis"), node.integer("reverse") != 0, a.type,
                                              node.threads);
}

GRAPHKIT_BINDINGS(cumulative) {
    nb::class_<Cumulative, Kernel>(m, "Cumulative")
        .def(
            "__init__",
            [](Cumulative* self, Dims x, std::int64_t axis, bool product, bool exclusive, bool reverse, Text dtype,
               int threads) {
                new (self) Cumulative(std::move(x), axis, product, exclusive, reverse, element_type(dtype), threads);
            },
            "x"_a, "axis"_a, "product"_a, "exclusive"_a, "reverse"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<LinearRecurrence, Kernel>(m, "LinearRecurrence")
        .def(
            "__init__",
            [](LinearRecurrence* self, Dims a, std::int64_t axis, bool reverse, Text dtype, int threads) {
                new (self) LinearRecurrence(std::move(a), axis, reverse, element_type(dtype), threads);
            },
            "a"_a, "axis"_a, "reverse"_a, "dtype"_a, "threads"_a = 0);
}

}  // namespace graphkit
