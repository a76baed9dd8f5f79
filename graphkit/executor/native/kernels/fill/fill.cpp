// Tensors that are computed from a few numbers: constants, ranges, one-hot rows, identity matrices.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>

#include "primitives/elements.h"
#include "runtime/bindings.h"
#include "runtime/bytes.h"
#include "runtime/data_dependent.h"
#include "runtime/kernel.h"
#include "runtime/operator_kernels.h"
#include "runtime/threads.h"
#include "simd/half_convert.h"

namespace graphkit {
namespace {

// Fills y with an element, given by its bytes. Any element type. The shape operand is not read.
class Fill final : public Kernel {
  public:
    Fill(Dims y, const std::string& value, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    std::string value_;
};

// start + i * delta for i < length; integers of 16, 32 or 64 bits. Operands: start, limit (not read), delta. `shapes`:
// the operands' shapes, each with one element.
class Range final : public Kernel {
  public:
    Range(const std::vector<Dims>& shapes, std::int64_t length, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
};

// A matrix with `one` (given by its bytes) on diagonal k, which is above the main one if k is positive, and zeros
// elsewhere. x is not read.
class EyeLike final : public Kernel {
  public:
    EyeLike(Dims x, ElementType x_type, std::int64_t k, const std::string& one, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    std::int64_t k_ = 0;
    std::string one_;
};

// values[1] where the position along the new axis `axis` equals the index, else values[0]. Indices may have any numeric
// type; those outside of [-depth, depth - 1] give rows of values[0]. Operands: indices, depth (not read), values.
class OneHot final : public Kernel {
  public:
    OneHot(Dims indices, Dims depth_shape, std::int64_t depth, std::int64_t axis, ElementType type,
           ElementType index_type, ElementType depth_type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    AroundAxis around_;
};

// Converts an element of any numeric type to an index; drops the fraction.
template <typename T>
std::int64_t index_of(T value) {
    if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
        return index_of(to_float(value));
    } else if constexpr (std::is_floating_point_v<T>) {
        const bool fits = value > T(-0x1p62) && value < T(0x1p62);
        return fits ? static_cast<std::int64_t>(value) : std::numeric_limits<std::int64_t>::min();
    } else {
        return static_cast<std::int64_t>(value);
    }
}

void require_element(const Kernel& kernel, const std::string& bytes, ElementType type) {
    if (bytes.size() != size_of(type)) {
        throw NativeError(kernel.describe() + ": the element must have " + std::to_string(size_of(type)) +
                          " bytes, but has " + std::to_string(bytes.size()));
    }
}

const std::byte* bytes_of(const std::string& element) {
    return reinterpret_cast<const std::byte*>(element.data());
}

// Calls body with a value of a type that has the size of the element, which is never 16.
template <typename Body>
void with_size_of(ElementType type, Body&& body) {
    with_element(size_of(type), [&](auto element) {
        if constexpr (!std::is_same_v<decltype(element), Block16>) {
            body(element);
        }
    });
}

}  // namespace

Fill::Fill(Dims y, const std::string& value, ElementType type, int threads)
    : Kernel("ConstantOfShape", threads), value_(value) {
    inputs_ = {{"shape", {static_cast<std::int64_t>(y.size())}, ElementType::i64, true}};
    outputs_ = {{"y", std::move(y), type}};
    require_element(*this, value_, type);
}

void Fill::run(const void* const*, void* const* outputs, std::byte*) const {
    with_size_of(outputs_[0].type, [&](auto element) {
        using T = decltype(element);
        const T value = load_element<T>(bytes_of(value_));
        auto* y = static_cast<T*>(outputs[0]);
        parallel_for(threads(), count(outputs_[0].shape), sizeof(T) / kBytesPerNanosecond,
                     [&](std::int64_t begin, std::int64_t end) { std::fill(y + begin, y + end, value); });
    });
}

Range::Range(const std::vector<Dims>& shapes, std::int64_t length, ElementType type, int threads)
    : Kernel("Range", threads) {
    if (type != ElementType::i16 && type != ElementType::i32 && type != ElementType::i64) {
        throw Unsupported(std::string("Range of ") + name_of(type));
    }
    if (shapes.size() != 3) {
        throw NativeError("Range: the shapes of start, limit and delta are expected");
    }
    inputs_ = {{"start", shapes[0], type}, {"limit", shapes[1], type, true}, {"delta", shapes[2], type}};
    outputs_ = {{"y", {length}, type}};
}

void Range::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    with_type(outputs_[0].type, [&](auto element) {
        using T = decltype(element);
        if constexpr (std::is_same_v<T, std::int16_t> || std::is_same_v<T, std::int32_t> ||
                      std::is_same_v<T, std::int64_t>) {
            const auto start = static_cast<std::uint64_t>(*static_cast<const T*>(inputs[0]));
            const auto delta = static_cast<std::uint64_t>(*static_cast<const T*>(inputs[2]));
            auto* y = static_cast<T*>(outputs[0]);
            using Bits = std::make_unsigned_t<T>;
            constexpr std::int64_t kLanes = 8;
            parallel_for(threads(), outputs_[0].shape[0], 0.2, [&](std::int64_t begin, std::int64_t end) {
                // Sums modulo 2^n are exact, and so vectors of sums replace products.
                Bits values[kLanes];
                for (std::int64_t lane = 0; lane < kLanes; ++lane) {
                    values[lane] = static_cast<Bits>(start + static_cast<std::uint64_t>(begin + lane) * delta);
                }
                const auto step = static_cast<Bits>(kLanes * delta);
                std::int64_t i = begin;
                for (; i + kLanes <= end; i += kLanes) {
                    std::memcpy(y + i, values, sizeof values);
                    for (Bits& value : values) {
                        value = static_cast<Bits>(value + step);
                    }
                }
                std::memcpy(y + i, values, static_cast<std::size_t>(end - i) * sizeof(T));
            });
        }
    });
}

EyeLike::EyeLike(Dims x, ElementType x_type, std::int64_t k, const std::string& one, ElementType type, int threads)
    : Kernel("EyeLike", threads), one_(one) {
    outputs_ = {{"y", x, type}};
    inputs_ = {{"x", std::move(x), x_type, true}};
    const Dims& shape = outputs_[0].shape;
    if (shape.size() != 2) {
        throw NativeError(describe() + ": not a matrix");
    }
    k_ = std::clamp(k, -shape[0], shape[1]);  // other diagonals are outside of the matrix
    require_element(*this, one_, type);
}

void EyeLike::run(const void* const*, void* const* outputs, std::byte*) const {
    const std::int64_t rows = outputs_[0].shape[0];
    const std::int64_t columns = outputs_[0].shape[1];
    const auto size = static_cast<std::int64_t>(one_.size());
    auto* y = static_cast<std::byte*>(outputs[0]);
    clear(threads(), y, rows * columns * size);
    for (std::int64_t i = std::max<std::int64_t>(0, -k_); i < std::min(rows, columns - k_); ++i) {
        copy_bytes(y + (i * columns + i + k_) * size, bytes_of(one_), one_.size());
    }
}

OneHot::OneHot(Dims indices, Dims depth_shape, std::int64_t depth, std::int64_t axis, ElementType type,
               ElementType index_type, ElementType depth_type, int threads)
    : Kernel("OneHot", threads) {
    const std::size_t at = checked_axis(axis, indices.size() + 1);
    Dims y = indices;
    y.insert(y.begin() + static_cast<std::ptrdiff_t>(at), std::max<std::int64_t>(depth, 0));
    around_ = AroundAxis(y, at);
    inputs_ = {{"indices", std::move(indices), index_type},
               {"depth", std::move(depth_shape), depth_type, true},
               {"values", {2}, type}};
    outputs_ = {{"y", std::move(y), type}};
}

namespace {

// Number of indices that are read at a time.
constexpr std::int64_t kBlock = 1024;

// Converts an index that counts from the end of `depth` rows to one from the front. An index that is out of range
// becomes negative or too large.
inline std::int64_t front_of(std::int64_t index, std::int64_t depth) {
    return index + ((index >> 63) & depth);
}

// Writes `on` to the element of y that each index in [begin, end) selects; each row of y belongs to one index.
template <typename T>
void set_ones(ElementType type, const void* indices, std::int64_t begin, std::int64_t end, std::int64_t depth, T on,
              T* y) {
    with_type(type, [&](auto number) {
        const auto* from = static_cast<const decltype(number)*>(indices);
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t front = front_of(index_of(from[i]), depth);
            if (static_cast<std::uint64_t>(front) < static_cast<std::uint64_t>(depth)) {
                y[i * depth + front] = on;
            }
        }
    });
}

// found[i] = the index at position at + i, minus `first`; -1 if that is not in [0, rows).
void find_rows(ElementType type, const void* indices, std::int64_t at, std::int64_t length, std::int64_t depth,
               std::int64_t first, std::int64_t rows, std::int32_t* found) {
    with_type(type, [&](auto number) {
        const auto* from = static_cast<const decltype(number)*>(indices) + at;
        for (std::int64_t i = 0; i < length; ++i) {
            const std::int64_t row = front_of(index_of(from[i]), depth) - first;
            const bool inside = static_cast<std::uint64_t>(row) < static_cast<std::uint64_t>(rows);
            found[i] = inside ? static_cast<std::int32_t>(row) : -1;
        }
    });
}

// to[i] = `on` where found[i] is `row`, else `off`.
template <typename T>
void mark_row(const std::int32_t* __restrict found, std::int32_t row, std::int64_t length, T on, T off,
              T* __restrict to) {
    for (std::int64_t i = 0; i < length; ++i) {
        to[i] = found[i] == row ? on : off;
    }
}

}  // namespace

void OneHot::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    const auto [outer, depth, inner] = around_;
    const ElementType index_type = inputs_[0].type;
    const void* const indices = inputs[0];
    with_size_of(outputs_[0].type, [&, outer = outer, depth = depth, inner = inner](auto element) {
        using T = decltype(element);
        const T off = static_cast<const T*>(inputs[2])[0];
        const T on = static_cast<const T*>(inputs[2])[1];
        auto* y = static_cast<T*>(outputs[0]);
        if (inner == 1) {
            const double cost = static_cast<double>(depth) * sizeof(T) / kBytesPerNanosecond + 3;
            parallel_for(threads(), outer, cost, [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t at = begin; at < end; at += kBlock) {
                    const std::int64_t stop = std::min(at + kBlock, end);
                    std::fill(y + at * depth, y + stop * depth, off);
                    set_ones(index_type, indices, at, stop, depth, on, y);
                }
            });
            return;
        }
        // All rows of one outer position have the same indices: each block of indices is read once for all of these
        // rows.
        parallel_for(threads(), outer * depth, static_cast<double>(inner), [&](std::int64_t begin, std::int64_t end) {
            constexpr std::int64_t kMostRows = std::int64_t{1} << 30;  // so that row numbers fit into 32 bits
            std::int32_t found[kBlock];
            for (std::int64_t row = begin; row < end;) {
                const std::int64_t first = row % depth;
                const std::int64_t rows = std::min({depth - first, end - row, kMostRows});
                for (std::int64_t at = 0; at < inner; at += kBlock) {
                    const std::int64_t length = std::min(kBlock, inner - at);
                    find_rows(index_type, indices, row / depth * inner + at, length, depth, first, rows, found);
                    for (std::int32_t r = 0; r < rows; ++r) {
                        T* to = y + (row + r) * inner + at;
                        mark_row(found, r, length, on, off, to);
                    }
                }
                row += rows;
            }
        });
    });
}

// --- data-dependent sizes ------------------------------------------------------------------------------

namespace {

// start, start + delta, ...: all values below `limit` or, for a negative delta, above it. float16 and bfloat16 are
// computed in float.
class SizedRange final : public DataDependentKernel {
  public:
    SizedRange(ElementType type, int threads) : DataDependentKernel("Range", {type, type, type}, {type}, threads) {}
    void run(const std::vector<Operand>& inputs, RunMemory& memory) const override;

  private:
    template <typename T>
    void run_integers(const std::vector<Operand>& inputs, RunMemory& memory) const;
    template <typename T>
    void run_floats(const std::vector<Operand>& inputs, RunMemory& memory) const;
};

// Like OneHot, with a depth that is known only at run time.
class SizedOneHot final : public DataDependentKernel {
  public:
    SizedOneHot(std::int64_t axis, ElementType type, ElementType index_type, ElementType depth_type, int threads)
        : DataDependentKernel("OneHot", {index_type, depth_type, type}, {type}, threads), axis_(axis) {}
    void run(const std::vector<Operand>& inputs, RunMemory& memory) const override;

  private:
    std::int64_t axis_;
};

// Conversions to a number type for arithmetic, and back.
template <typename Wide, typename T>
Wide to_number(T value) {
    if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
        return static_cast<Wide>(to_float(value));
    } else {
        return static_cast<Wide>(value);
    }
}

template <typename T, typename Wide>
T from_number(Wide value) {
    if constexpr (std::is_same_v<T, Float16>) {
        return to_float16(static_cast<float>(value));
    } else if constexpr (std::is_same_v<T, BFloat16>) {
        return to_bfloat16(static_cast<float>(value));
    } else {
        return static_cast<T>(value);
    }
}

void require_one_element(const DataDependentKernel& kernel, const std::vector<Operand>& inputs, std::size_t position) {
    if (inputs[position].elements() != 1) {
        throw NativeError(kernel.describe(inputs) + ": operand " + std::to_string(position) + " must have one element");
    }
}

}  // namespace

template <typename T>
void SizedRange::run_integers(const std::vector<Operand>& inputs, RunMemory& memory) const {
    const auto start = static_cast<__int128>(*inputs[0].as<T>());
    const auto limit = static_cast<__int128>(*inputs[1].as<T>());
    const auto delta = static_cast<__int128>(*inputs[2].as<T>());
    const __int128 distance = delta > 0 ? limit - start : start - limit;
    const __int128 step = delta > 0 ? delta : -delta;
    const __int128 wanted = distance <= 0 ? 0 : (distance + step - 1) / step;
    if (wanted > std::numeric_limits<std::int64_t>::max()) {
        throw NoRoom(std::numeric_limits<std::size_t>::max());
    }
    const auto length = static_cast<std::int64_t>(wanted);
    void* const y = memory.result(0, {length});
    if (y != nullptr) {
        const Range kernel({inputs[0].shape, inputs[1].shape, inputs[2].shape}, length, outputs()[0], threads());
        const void* const operands[] = {inputs[0].data, inputs[1].data, inputs[2].data};
        void* const results[] = {y};
        kernel.run(operands, results, nullptr);
    }
}

template <typename T>
void SizedRange::run_floats(const std::vector<Operand>& inputs, RunMemory& memory) const {
    using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
    const auto wide = [&](std::size_t position) { return to_number<Wide>(*inputs[position].as<T>()); };
    const Wide start = wide(0), delta = wide(2);
    const double length =
        std::ceil((static_cast<double>(wide(1)) - static_cast<double>(start)) / static_cast<double>(delta));
    if (!std::isfinite(length)) {
        throw NativeError(describe(inputs) + ": the number of elements would not be finite: " + std::to_string(length));
    }
    if (length >= 0x1p63) {
        throw NoRoom(std::numeric_limits<std::size_t>::max());
    }
    const std::int64_t whole = length > 0 ? static_cast<std::int64_t>(length) : 0;
    auto* const y = static_cast<T*>(memory.result(0, {whole}));
    // The loop with 32-bit positions is vectorised. Copies, since stores might change what a reference refers to.
    const auto fill = [start, delta, y](auto i, auto end) {
        for (; i < end; ++i) {
            y[i] = from_number<T>(start + static_cast<Wide>(i) * delta);
        }
    };
    parallel_for(threads(), y == nullptr ? 0 : whole, 0.5, [&](std::int64_t begin, std::int64_t end) {
        const std::int64_t narrow = std::clamp<std::int64_t>(std::numeric_limits<std::int32_t>::max(), begin, end);
        if (begin < narrow) {
            fill(static_cast<std::int32_t>(begin), static_cast<std::int32_t>(narrow));
        }
        fill(narrow, end);
    });
}

void SizedRange::run(const std::vector<Operand>& inputs, RunMemory& memory) const {
    for (std::size_t i = 0; i < 3; ++i) {
        require_one_element(*this, inputs, i);
    }
    with_type(outputs()[0], [&](auto element) {
        using T = decltype(element);
        if constexpr (std::is_same_v<T, std::int16_t> || std::is_same_v<T, std::int32_t> ||
                      std::is_same_v<T, std::int64_t>) {
            if (*inputs[2].as<T>() == 0) {
                throw NativeError(describe(inputs) + ": delta must not be 0");
            }
            run_integers<T>(inputs, memory);
        } else if constexpr (!std::is_integral_v<T>) {
            if (to_number<double>(*inputs[2].as<T>()) == 0) {
                throw NativeError(describe(inputs) + ": delta must not be 0");
            }
            run_floats<T>(inputs, memory);
        }
    });
}

void SizedOneHot::run(const std::vector<Operand>& inputs, RunMemory& memory) const {
    require_one_element(*this, inputs, 1);
    std::int64_t depth = 0;
    with_type(this->inputs()[1], [&](auto element) { depth = index_of(*inputs[1].as<decltype(element)>()); });
    if (depth < 0 || inputs[2].shape != Dims{2}) {
        throw NativeError(describe(inputs) + ": depth must be at least 0 (it is " + std::to_string(depth) +
                          "), and values must be [off, on]");
    }
    const auto axis = static_cast<std::int64_t>(checked_axis(axis_, inputs[0].shape.size() + 1));
    const OneHot kernel(inputs[0].shape, inputs[1].shape, depth, axis, outputs()[0], this->inputs()[0],
                        this->inputs()[1], threads());
    void* const results[] = {memory.result(0, kernel.outputs()[0].shape)};
    if (results[0] != nullptr) {
        const void* const operands[] = {inputs[0].data, inputs[1].data, inputs[2].data};
        kernel.run(operands, results, nullptr);
    }
}

GRAPHKIT_KERNEL_READING("", ConstantOfShape) {
    const TensorSpec& y = node.outputs[0];
    std::string element(size_of(y.type), '\0');
    if (node.has_attribute("value")) {
        const std::vector<std::int64_t>& bytes = node.integers("value");
        element.assign(bytes.begin(), bytes.end());
    }
    return std::make_unique<Fill>(y.shape, element, y.type, node.threads);
}

GRAPHKIT_KERNEL_READING("", Range) {
    std::vector<Dims> shapes;
    for (std::size_t i = 0; i < 3; ++i) {
        shapes.push_back(node.input(i).tensor.shape);
    }
    const TensorSpec& y = node.outputs[0];
    return std::make_unique<Range>(shapes, y.shape.at(0), y.type, node.threads);
}

GRAPHKIT_KERNEL_READING("", EyeLike) {
    const TensorSpec &x = node.input(0).tensor, &y = node.outputs[0];
    std::string one(size_of(y.type), '\0');
    with_type(y.type, [&](auto element) {
        element = from_number<decltype(element)>(1);
        std::memcpy(one.data(), &element, sizeof element);
    });
    return std::make_unique<EyeLike>(x.shape, x.type, node.integer("k"), one, y.type, node.threads);
}

GRAPHKIT_KERNEL_READING("", OneHot) {
    const TensorSpec &indices = node.input(0).tensor, &depth = node.input(1).tensor, &y = node.outputs[0];
    const std::int64_t axis = node.integer("axis");
    const std::int64_t size = y.shape.at(checked_axis(axis, y.shape.size()));
    return std::make_unique<OneHot>(indices.shape, depth.shape, size, axis, y.type, indices.type, depth.type,
                                    node.threads);
}

GRAPHKIT_BINDINGS(fill, "data_dependent_call") {
    nb::class_<SizedRange, DataDependentKernel>(m, "SizedRange")
        .def(
            "__init__",
            [](SizedRange* self, Text dtype, int threads) { new (self) SizedRange(element_type(dtype), threads); },
            "dtype"_a, "threads"_a = 0);
    nb::class_<SizedOneHot, DataDependentKernel>(m, "SizedOneHot")
        .def(
            "__init__",
            [](SizedOneHot* self, std::int64_t axis, Text dtype, Text index_dtype, Text depth_dtype, int threads) {
                new (self) SizedOneHot(axis, element_type(dtype), element_type(index_dtype), element_type(depth_dtype),
                                       threads);
            },
            "axis"_a, "dtype"_a, "index_dtype"_a, "depth_dtype"_a, "threads"_a = 0);
}

}  // namespace graphkit
