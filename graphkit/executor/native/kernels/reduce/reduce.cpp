// Reductions over any axes.
#include "kernels/reduce/reduce.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>

#include "primitives/reduction.h"
#include "primitives/row_table.h"
#include "runtime/bindings.h"
#include "runtime/kernel.h"
#include "runtime/operator_kernels.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// Reduce<op>: Sum, Mean, Max, Min, Prod, L1, L2, SumSquare, LogSum, LogSumExp. `y` is the shape of the result, with or
// without the reduced axes. float16 and bfloat16 accumulate in float, integers in 64 bits.
class Reduce : public Kernel {
  public:
    Reduce(const std::string& op, const Dims& x, const Dims& axes, const Dims& y, const std::string& type, int threads);
    ~Reduce() override;

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

    struct Implementation;

  private:
    std::unique_ptr<Implementation> implementation_;
    bool all_true_ = false;  // the minimum of no booleans is true
};

}  // namespace

struct Reduce::Implementation {
    virtual ~Implementation() = default;
    virtual std::size_t scratch_bytes() const = 0;
    virtual void run(const void* x, void* y, std::byte* scratch, int threads) const = 0;
};

namespace {

enum class Op : std::uint8_t { sum, mean, largest, smallest, product, l1, l2, sum_square, log_sum, log_sum_exp };

constexpr std::array<const char*, 10> kOps{"Sum", "Mean", "Max",       "Min",    "Prod",
                                           "L1",  "L2",   "SumSquare", "LogSum", "LogSumExp"};

Op op_of(const std::string& name) {
    const auto found = std::find(kOps.begin(), kOps.end(), name);
    if (found == kOps.end()) {
        throw NativeError("Reduce" + name + " is not a known reduction");
    }
    return static_cast<Op>(found - kOps.begin());
}

Reduction reduction_of(Op op) {
    switch (op) {
        case Op::largest:
            return Reduction::largest;
        case Op::smallest:
            return Reduction::smallest;
        case Op::product:
            return Reduction::product;
        case Op::l1:
            return Reduction::sum_absolute;
        case Op::l2:
        case Op::sum_square:
            return Reduction::sum_squares;
        case Op::log_sum_exp:
            return Reduction::sum_exp;
        default:
            return Reduction::sum;
    }
}

template <typename T>
class TypedReduce : public Reduce::Implementation {
    using Acc = Accumulator<T>;
    static constexpr bool kIsInteger = std::is_integral_v<T>;
    static constexpr bool kIsWide = std::is_same_v<T, Acc>;

  public:
    TypedReduce(const ReductionGeometry& geometry, Op op)
        : geometry_(geometry), op_(op), reducer_(geometry, reduction_of(op)), largest_(geometry, Reduction::largest) {
        if constexpr (kIsInteger) {
            const bool extreme = op == Op::largest || op == Op::smallest;
            if (op == Op::log_sum || op == Op::log_sum_exp || (sizeof(T) == 1 && !extreme)) {
                throw Unsupported(std::string("Reduce") + kOps[static_cast<std::size_t>(op)] +
                                  " of such integers has no native kernel");
            }
        }
    }

    std::size_t scratch_bytes() const override {
        const std::int64_t totals = kIsWide ? 0 : geometry_.outputs;
        const std::int64_t shifts = op_ == Op::log_sum_exp ? geometry_.outputs : 0;
        const std::int64_t partial = std::max(reducer_.partial_count(), largest_.partial_count());
        return static_cast<std::size_t>(totals + shifts + partial) * sizeof(Acc);
    }

    void run(const void* from, void* to, std::byte* scratch, int threads) const override {
        const auto* x = static_cast<const T*>(from);
        auto* memory = reinterpret_cast<Acc*>(scratch);
        const std::int64_t n = geometry_.outputs;
        Acc* totals = nullptr;
        if constexpr (kIsWide) {
            totals = static_cast<Acc*>(to);
        } else {
            totals = memory;
            memory += n;
        }
        Acc* shift = nullptr;
        if constexpr (!kIsInteger) {
            if (op_ == Op::log_sum_exp) {
                shift = memory;
                memory += n;
                largest_.run(x, nullptr, shift, memory, threads);
                // For infinite and NaN elements, the result is right without a shift.
                std::replace_if(shift, shift + n, [](Acc value) { return !std::isfinite(value); }, Acc{0});
            }
        }
        reducer_.run(x, shift, totals, memory, threads);
        if (kIsWide && (op_ == Op::largest || op_ == Op::smallest || op_ == Op::sum || op_ == Op::product)) {
            return;
        }
        const bool transcendental = op_ == Op::log_sum || op_ == Op::log_sum_exp;
        parallel_for(
            threads, n, transcendental ? 10 : 1,
            [&](std::int64_t begin, std::int64_t end) {
                finish(totals + begin, shift == nullptr ? nullptr : shift + begin, end - begin);
                if constexpr (!kIsWide) {
                    narrow(totals + begin, static_cast<T*>(to) + begin, end - begin);
                }
            },
            64);
    }

  private:
    // Applies the last function to `size` totals.
    void finish(Acc* totals, const Acc* shift, std::int64_t size) const {
        const auto apply = [&](auto&& function) {
            for (std::int64_t i = 0; i < size; ++i) {
                totals[i] = function(totals[i]);
            }
        };
        const auto behind = static_cast<Acc>(geometry_.reduced_count);
        if constexpr (kIsInteger) {
            if (op_ == Op::mean) {  // rounded towards 0; 0 if there are no elements
                divide(totals, size, behind);
            } else if (op_ == Op::l2) {  // a sum that overflowed has no root
                apply([](Acc total) {
                    return total < 0 ? std::numeric_limits<Acc>::min()
                                     : static_cast<Acc>(std::sqrt(static_cast<double>(total)));
                });
            }
        } else {
            if (op_ == Op::mean) {
                apply([&](Acc total) { return total / behind; });
            } else if (op_ == Op::l2) {
                apply([](Acc total) { return std::sqrt(total); });
            } else if (op_ == Op::log_sum) {
                apply([](Acc total) { return std::log(total); });
            } else if (op_ == Op::log_sum_exp) {
                for (std::int64_t i = 0; i < size; ++i) {
                    totals[i] = std::log(totals[i]) + shift[i];
                }
            }
        }
    }

    // Divides integers, rounded towards 0. A product by the reciprocal is faster than a division. With totals below
    // 2^52, it is off by at most 1.
    static void divide(Acc* totals, std::int64_t size, Acc divisor) {
        if (divisor == 1) {
            return;
        }
        if (divisor == 0) {
            std::fill_n(totals, size, Acc{0});
            return;
        }
        constexpr std::uint64_t kExact = std::uint64_t{1} << 52;
        const double reciprocal = 1.0 / static_cast<double>(divisor);
        const auto by = static_cast<std::int64_t>(divisor);
        for (std::int64_t i = 0; i < size; ++i) {
            const bool is_negative = totals[i] < 0;
            const auto total =
                is_negative ? 0 - static_cast<std::uint64_t>(totals[i]) : static_cast<std::uint64_t>(totals[i]);
            if (total >= kExact) {
                totals[i] /= divisor;
                continue;
            }
            const auto positive = static_cast<std::int64_t>(total);
            auto quotient = static_cast<std::int64_t>(static_cast<double>(positive) * reciprocal);
            const std::int64_t rest = positive - quotient * by;
            quotient += static_cast<std::int64_t>(rest >= by) - static_cast<std::int64_t>(rest < 0);
            totals[i] = static_cast<Acc>(is_negative ? -quotient : quotient);
        }
    }

    static void narrow(const Acc* from, T* to, std::int64_t size) {
        if constexpr (kIsInteger) {
            for (std::int64_t i = 0; i < size; ++i) {
                to[i] = static_cast<T>(from[i]);
            }
        } else {
            row_table().narrow(from, to, size);
        }
    }

    ReductionGeometry geometry_;
    Op op_;
    Reducer<T> reducer_;
    Reducer<T> largest_;
};

std::unique_ptr<Reduce::Implementation> make(ElementType type, const ReductionGeometry& geometry, Op op) {
    switch (type) {
        case ElementType::f32:
            return std::make_unique<TypedReduce<float>>(geometry, op);
        case ElementType::f64:
            return std::make_unique<TypedReduce<double>>(geometry, op);
        case ElementType::f16:
            return std::make_unique<TypedReduce<Float16>>(geometry, op);
        case ElementType::bf16:
            return std::make_unique<TypedReduce<BFloat16>>(geometry, op);
        case ElementType::i8:
            return std::make_unique<TypedReduce<std::int8_t>>(geometry, op);
        case ElementType::u8:
            return std::make_unique<TypedReduce<std::uint8_t>>(geometry, op);
        case ElementType::i32:
            return std::make_unique<TypedReduce<std::int32_t>>(geometry, op);
        case ElementType::u32:
            return std::make_unique<TypedReduce<std::uint32_t>>(geometry, op);
        case ElementType::i64:
            return std::make_unique<TypedReduce<std::int64_t>>(geometry, op);
        case ElementType::u64:
            return std::make_unique<TypedReduce<std::uint64_t>>(geometry, op);
        default:
            throw Unsupported(std::string("reductions of ") + name_of(type) + " have no native kernel");
    }
}

}  // namespace

Reduce::Reduce(const std::string& op, const Dims& x, const Dims& axes, const Dims& y, const std::string& type,
               int threads)
    : Kernel("Reduce" + op, threads) {
    const ElementType element = element_type(type);
    std::vector<bool> reduced(x.size());
    const auto rank = static_cast<std::int64_t>(x.size());
    for (const std::int64_t axis : axes) {
        if (axis < -rank || axis >= rank) {
            throw NativeError(name() + ": axis " + std::to_string(axis) + " is out of range for " + to_string(x));
        }
        reduced[static_cast<std::size_t>(axis < 0 ? axis + rank : axis)] = true;
    }
    const ReductionGeometry geometry(x, reduced);
    if (count(y) != geometry.outputs) {
        throw NativeError(name() + ": the result of " + to_string(x) + " cannot have the shape " + to_string(y));
    }
    inputs_ = {{"x", x, element}};
    outputs_ = {{"y", y, element}};
    const Op kind = op_of(op);
    // The maximum and minimum of booleans are those of bytes 0 and 1.
    const bool is_bool = element == ElementType::boolean && (kind == Op::largest || kind == Op::smallest);
    all_true_ = is_bool && kind == Op::smallest && geometry.reduced_count == 0;
    implementation_ = make(is_bool ? ElementType::u8 : element, geometry, kind);
}

Reduce::~Reduce() = default;

std::size_t Reduce::scratch_bytes() const {
    return implementation_->scratch_bytes();
}

void Reduce::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    if (all_true_) {
        std::fill_n(static_cast<std::uint8_t*>(outputs[0]), count(outputs_[0].shape), std::uint8_t{1});
        return;
    }
    implementation_->run(inputs[0], outputs[0], scratch, threads());
}

std::unique_ptr<Kernel> make_reduce(const std::string& op, const Dims& x, const Dims& axes, const Dims& y,
                                    ElementType type, int threads) {
    return std::make_unique<Reduce>(op, x, axes, y, name_of(type), threads);
}

static std::unique_ptr<Kernel> reduce(const NodeSpec& node, const std::string& op, const Dims& axes) {
    const TensorSpec& y = node.outputs[0];
    return make_reduce(op, node.input(0).tensor.shape, axes, y.shape, y.type, node.threads);
}

// The axes of x from `first` on.
static Dims axes_from(const NodeSpec& node, std::int64_t first) {
    Dims axes;
    for (auto axis = first; axis < static_cast<std::int64_t>(node.input(0).tensor.shape.size()); ++axis) {
        axes.push_back(axis);
    }
    return axes;
}

// Reduces along the axes in operand 1. If it is absent or empty: along all axes, or none with noop_with_empty_axes.
static std::unique_ptr<Kernel> reduce_axes(const NodeSpec& node, const std::string& op) {
    const Dims given = node.has_input(1) ? node.elements(1) : Dims{};
    const bool all = given.empty() && node.integer("noop_with_empty_axes") == 0;
    return reduce(node, op, all ? axes_from(node, 0) : given);
}

static std::unique_ptr<Kernel> global_pool(const NodeSpec& node, const std::string& op) {
    return reduce(node, op, axes_from(node, 2));
}

#define GRAPHKIT_REDUCE(op)                      \
    GRAPHKIT_KERNEL_READING("", Reduce##op, 1) { \
        return reduce_axes(node, #op);           \
    }

GRAPHKIT_REDUCE(Sum)
GRAPHKIT_REDUCE(Mean)
GRAPHKIT_REDUCE(Max)
GRAPHKIT_REDUCE(Min)
GRAPHKIT_REDUCE(Prod)
GRAPHKIT_REDUCE(L1)
GRAPHKIT_REDUCE(L2)
GRAPHKIT_REDUCE(SumSquare)
GRAPHKIT_REDUCE(LogSum)
GRAPHKIT_REDUCE(LogSumExp)

#undef GRAPHKIT_REDUCE

GRAPHKIT_KERNEL_READING("ai.graphkit", ReduceToShapeOf) {
    const Dims &x = node.input(0).tensor.shape, &y = node.outputs[0].shape;
    const std::size_t missing = x.size() - y.size();
    Dims axes;
    for (std::size_t i = 0; i < x.size(); ++i) {
        if (i < missing || (y[i - missing] == 1 && x[i] != 1)) {
            axes.push_back(static_cast<std::int64_t>(i));
        }
    }
    return reduce(node, "Sum", axes);
}

GRAPHKIT_KERNEL_READING("", GlobalAveragePool) {
    return global_pool(node, "Mean");
}

GRAPHKIT_KERNEL_READING("", GlobalMaxPool) {
    return global_pool(node, "Max");
}

GRAPHKIT_KERNEL_READING("", GlobalLpPool) {
    switch (node.integer("p")) {
        case 1:
            return global_pool(node, "L1");
        case 2:
            return global_pool(node, "L2");
        default:
            return nullptr;
    }
}

GRAPHKIT_BINDINGS(reduce) {
    nb::class_<Reduce, Kernel>(m, "Reduce")
        .def(nb::init<const std::string&, const Dims&, const Dims&, const Dims&, const std::string&, int>(), "op"_a,
             "x"_a, "axes"_a, "y"_a, "type"_a, "threads"_a = 0);
}

}  // namespace graphkit
