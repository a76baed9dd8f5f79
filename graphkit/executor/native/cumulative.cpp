#include "cumulative.h"

#include <algorithm>
#include <type_traits>

#include "simd/half_convert.h"
#include "threads.h"

namespace graphkit {
namespace {

// Columns that one pass along the axis sums side by side.
constexpr std::int64_t kColumns = 64;

// The type that sums are kept in, and conversions to and from it. Integers wrap around.
template <typename T>
struct Sums {
    using type = std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;
    static type of(T value) { return static_cast<type>(value); }
    static T to(type sum) { return static_cast<T>(sum); }
};

template <>
struct Sums<Float16> {
    using type = float;
    static float of(Float16 value) { return to_float(value); }
    static Float16 to(float sum) { return to_float16(sum); }
};

template <>
struct Sums<BFloat16> {
    using type = float;
    static float of(BFloat16 value) { return to_float(value); }
    static BFloat16 to(float sum) { return to_bfloat16(sum); }
};

// `size` steps of `stride` elements from x and y on, for `columns` neighbours at once.
template <typename T>
void sum_columns(const T* x, T* y, std::int64_t size, std::int64_t stride, std::int64_t columns, bool exclusive) {
    using S = Sums<T>;
    typename S::type sums[kColumns];
    for (std::int64_t c = 0; c < columns; ++c) {
        sums[c] = S::of(x[c]);
        y[c] = exclusive ? S::to(typename S::type{}) : x[c];
    }
    for (std::int64_t i = 1; i < size; ++i) {
        x += stride;
        y += stride;
        for (std::int64_t c = 0; c < columns; ++c) {
            const auto before = sums[c];
            sums[c] = before + S::of(x[c]);
            y[c] = S::to(exclusive ? before : sums[c]);
        }
    }
}

// Rows whose axis is the last one: `Rows` of them side by side, because each sum waits for the one before it.
template <typename T, int Rows>
void sum_rows(const T* x, T* y, std::int64_t size, std::int64_t step, bool exclusive) {
    using S = Sums<T>;
    typename S::type sums[Rows];
    for (int r = 0; r < Rows; ++r) {
        const T first = x[r * size];
        sums[r] = S::of(first);
        y[r * size] = exclusive ? S::to(typename S::type{}) : first;
    }
    for (std::int64_t i = 1; i < size; ++i) {
        x += step;
        y += step;
        for (int r = 0; r < Rows; ++r) {
            const auto before = sums[r];
            sums[r] = before + S::of(x[r * size]);
            y[r * size] = S::to(exclusive ? before : sums[r]);
        }
    }
}

}  // namespace

CumSum::CumSum(Dims x, std::int64_t axis, bool exclusive, bool reverse, ElementType type, int threads)
    : Kernel("CumSum", threads), exclusive_(exclusive), reverse_(reverse) {
    around_ = AroundAxis(x, checked_axis(axis, x.size()));
    outputs_ = {{"y", x, type}};
    inputs_ = {{"x", std::move(x), type}};
    if (type == ElementType::boolean || size_of(type) == 1 || type == ElementType::i16 || type == ElementType::u16) {
        throw Unsupported(describe() + ": not a type of CumSum");
    }
}

void CumSum::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    const auto [outer, size, inner] = around_;
    if (count(outputs_[0].shape) == 0) {
        return;
    }
    with_type(outputs_[0].type, [&, outer = outer, size = size, inner = inner](auto element) {
        using T = decltype(element);
        if constexpr (sizeof(T) > 1 && !std::is_same_v<T, std::int16_t> && !std::is_same_v<T, std::uint16_t>) {
            const std::int64_t start = reverse_ ? (size - 1) * inner : 0;
            const std::int64_t step = reverse_ ? -inner : inner;
            const T* x = static_cast<const T*>(inputs[0]) + start;
            T* y = static_cast<T*>(outputs[0]) + start;
            if (inner == 1) {
                parallel_for(threads(), outer, static_cast<double>(size), [&](std::int64_t begin, std::int64_t end) {
                    std::int64_t row = begin;
                    for (; row + 4 <= end; row += 4) {
                        sum_rows<T, 4>(x + row * size, y + row * size, size, step, exclusive_);
                    }
                    for (; row < end; ++row) {
                        sum_rows<T, 1>(x + row * size, y + row * size, size, step, exclusive_);
                    }
                });
                return;
            }
            const std::int64_t blocks = (inner + kColumns - 1) / kColumns;
            const double cost = static_cast<double>(size * std::min(kColumns, inner)) * 0.3;
            parallel_for(threads(), outer * blocks, cost, [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t item = begin; item < end; ++item) {
                    const std::int64_t column = item % blocks * kColumns;
                    const std::int64_t at = item / blocks * size * inner + column;
                    sum_columns(x + at, y + at, size, step, std::min(kColumns, inner - column), exclusive_);
                }
            });
        }
    });
}

}  // namespace graphkit
