#include "kernels/scatter/rules.h"

#include <iterator>
#include <type_traits>

#include "primitives/elements.h"
#include "primitives/indices.h"
#include "simd/half_convert.h"

namespace graphkit {
namespace {

template <typename T>
constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

// The type in which elements of type T are combined.
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

// Integers wrap around: their sums and products are computed in uint64, because smaller types would be promoted to int.
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

// If an operand is NaN, the result is NaN; of two, the first one.
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

template <typename Combine, typename E, typename U, typename Index>
void combine_elements(void* to, const void* from, const void* at, const ScatterRule::Window& window) {
    const auto [rows, columns, stride, size, step] = window;
    auto* y = static_cast<E*>(to);
    const auto* updates = static_cast<const U*>(from);
    const auto* indices = static_cast<const Index*>(at);
    for (std::int64_t a = 0; a < rows; ++a) {
        for (std::int64_t j = 0; j < columns; ++j) {
            E& target = y[from_front(indices[a * stride + j], size) * step + j];
            target = Combine::template combine<E>(target, widened(updates[a * stride + j]));
        }
    }
}

template <typename Combine, typename E, typename U, typename Index>
void combine_slices_of(void* to, const void* from, const void* at, const ScatterRule::SliceWindow& window) {
    const auto [count_of_updates, slice, size, begin, end, first, last] = window;
    const auto* indices = static_cast<const Index*>(at);
    for (std::int64_t u = 0; u < count_of_updates; ++u) {
        const std::int64_t target = from_front(indices[u], size);
        if (target >= begin && target < end) {
            E* y = static_cast<E*>(to) + target * slice;
            const U* updates = static_cast<const U*>(from) + u * slice;
            for (std::int64_t i = first; i < last; ++i) {
                y[i] = Combine::template combine<E>(y[i], widened(updates[i]));
            }
        }
    }
}

// The type in which elements are combined: for Replace, T itself.
template <typename Combine, typename T>
using Combined = std::conditional_t<std::is_same_v<Combine, Replace>, T, Wide<T>>;

template <typename Combine, typename T>
constexpr ScatterRule kScatterRule = {sizeof(Combined<Combine, T>),
                                      sizeof(T),
                                      {&combine_elements<Combine, Combined<Combine, T>, T, std::int32_t>,
                                       &combine_elements<Combine, Combined<Combine, T>, T, std::int64_t>},
                                      {&combine_slices_of<Combine, Combined<Combine, T>, T, std::int32_t>,
                                       &combine_slices_of<Combine, Combined<Combine, T>, T, std::int64_t>}};

// The unsigned type with the same size: sums and products of signed and unsigned integers have the same bits.
ElementType without_sign(ElementType type) {
    switch (type) {
        case ElementType::i8:
            return ElementType::u8;
        case ElementType::i16:
            return ElementType::u16;
        case ElementType::i32:
            return ElementType::u32;
        case ElementType::i64:
            return ElementType::u64;
        default:
            return type;
    }
}

// Returns the rule for a sum or product. Signed integers use the rule of the unsigned type.
template <typename Combine>
const ScatterRule* rule_without_sign(ElementType type) {
    const ScatterRule* found = nullptr;
    with_type(without_sign(type), [&](auto element) {
        using T = decltype(element);
        if constexpr (!std::is_integral_v<T> || std::is_unsigned_v<T>) {
            found = &kScatterRule<Combine, T>;
        }
    });
    return found;
}

template <typename Combine>
const ScatterRule* rule_of(ElementType type) {
    const ScatterRule* found = nullptr;
    with_type(type, [&](auto element) { found = &kScatterRule<Combine, decltype(element)>; });
    return found;
}

// Returns the rule that replaces elements, which depends on their size only.
const ScatterRule* replacing_rule(ElementType type) {
    const ScatterRule* found = nullptr;
    with_element(size_of(type), [&](auto element) {
        if constexpr (!std::is_same_v<decltype(element), Block16>) {
            found = &kScatterRule<Replace, decltype(element)>;
        }
    });
    return found;
}

}  // namespace

const ScatterRule* scatter_rule(ElementType type, ScatterReduction reduction) {
    switch (reduction) {
        case ScatterReduction::none:
            return replacing_rule(type);
        case ScatterReduction::add:
            return rule_without_sign<Sum>(type);
        case ScatterReduction::mul:
            return rule_without_sign<Product>(type);
        case ScatterReduction::min:
            return rule_of<Minimum>(type);
        case ScatterReduction::max:
            return rule_of<Maximum>(type);
    }
    throw NativeError("no such reduction");
}

ScatterReduction scatter_reduction(const std::string& name) {
    constexpr const char* kNames[] = {"none", "add", "mul", "min", "max"};
    for (std::size_t i = 0; i < std::size(kNames); ++i) {
        if (name == kNames[i]) {
            return static_cast<ScatterReduction>(i);
        }
    }
    throw NativeError("no reduction '" + name + "'");
}

}  // namespace graphkit
