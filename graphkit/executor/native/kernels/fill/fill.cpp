// Tensors made from a few numbers: constants, ranges, one-hot rows, identity matrices.
#include <algorithm>
#include <limits>
#include <optional>
#include <type_traits>

#include "primitives/elements.h"
#include "runtime/bindings.h"
#include "runtime/kernel.h"
#include "runtime/threads.h"
#include "simd/half_convert.h"

namespace graphkit {
namespace {

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

// The index that an element of any numeric type stands for; fractions are cut off.
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
        throw NativeError(kernel.describe() + ": the element has " + std::to_string(bytes.size()) + " bytes");
    }
}

const std::byte* bytes_of(const std::string& element) {
    return reinterpret_cast<const std::byte*>(element.data());
}

// Calls body with a value of a type of the element's size, which is never 16.
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
            parallel_for(threads(), outputs_[0].shape[0], 0.5, [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t i = begin; i < end; ++i) {
                    y[i] = static_cast<T>(start + static_cast<std::uint64_t>(i) * delta);
                }
            });
        }
    });
}

EyeLike::EyeLike(Dims x, ElementType x_type, std::int64_t k, const std::string& one, ElementType type, int threads)
    : Kernel("EyeLike", threads), k_(k), one_(one) {
    outputs_ = {{"y", x, type}};
    inputs_ = {{"x", std::move(x), x_type, true}};
    if (outputs_[0].shape.size() != 2) {
        throw NativeError(describe() + ": not a matrix");
    }
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

void OneHot::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    const auto [outer, depth, inner] = around_;
    with_size_of(outputs_[0].type, [&, outer = outer, depth = depth, inner = inner](auto element) {
        using T = decltype(element);
        const T off = static_cast<const T*>(inputs[2])[0];
        const T on = static_cast<const T*>(inputs[2])[1];
        auto* y = static_cast<T*>(outputs[0]);
        with_type(inputs_[0].type, [&](auto number) {
            const auto* indices = static_cast<const decltype(number)*>(inputs[0]);
            if (inner == 1) {
                const double cost = static_cast<double>(depth) * sizeof(T) / kBytesPerNanosecond + 3;
                parallel_for(threads(), outer, cost, [&](std::int64_t begin, std::int64_t end) {
                    std::fill(y + begin * depth, y + end * depth, off);
                    for (std::int64_t i = begin; i < end; ++i) {
                        const std::int64_t index = index_of(indices[i]);
                        if (index >= -depth && index < depth) {
                            y[i * depth + (index < 0 ? index + depth : index)] = on;
                        }
                    }
                });
                return;
            }
            const auto work = static_cast<double>(inner);
            parallel_for(threads(), outer * depth, work, [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t row = begin; row < end; ++row) {
                    const std::int64_t wanted = row % depth;
                    const auto* chosen = indices + row / depth * inner;
                    for (std::int64_t i = 0; i < inner; ++i) {
                        const std::int64_t index = index_of(chosen[i]);
                        y[row * inner + i] = index == wanted || index == wanted - depth ? on : off;
                    }
                }
            });
        });
    });
}

GRAPHKIT_BINDINGS(fill) {
    nb::class_<Fill, Kernel>(m, "Fill").def(
        "__init__",
        [](Fill* self, Dims y, const nb::bytes& value, Text dtype, int threads) {
            new (self) Fill(std::move(y), bytes_of(value), element_type(dtype), threads);
        },
        "y"_a, "value"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<Range, Kernel>(m, "Range")
        .def(
            "__init__",
            [](Range* self, const std::vector<Dims>& shapes, std::int64_t length, Text dtype, int threads) {
                new (self) Range(shapes, length, element_type(dtype), threads);
            },
            "shapes"_a, "length"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<EyeLike, Kernel>(m, "EyeLike")
        .def(
            "__init__",
            [](EyeLike* self, Dims x, Text x_dtype, std::int64_t k, const nb::bytes& one, Text dtype, int threads) {
                new (self) EyeLike(std::move(x), element_type(x_dtype), k, bytes_of(one), element_type(dtype), threads);
            },
            "x"_a, "x_dtype"_a, "k"_a, "one"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<OneHot, Kernel>(m, "OneHot")
        .def(
            "__init__",
            [](OneHot* self, Dims indices, Dims depth_shape, std::int64_t depth, std::int64_t axis, Text dtype,
               Text index_dtype, Text depth_dtype, int threads) {
                new (self) OneHot(std::move(indices), std::move(depth_shape), depth, axis, element_type(dtype),
                                  element_type(index_dtype), element_type(depth_dtype), threads);
            },
            "indices"_a, "depth_shape"_a, "depth"_a, "axis"_a, "dtype"_a, "index_dtype"_a = "int64",
            "depth_dtype"_a = "int64", "threads"_a = 0);
}

}  // namespace graphkit
