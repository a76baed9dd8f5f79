// What kernels that compute in float or double share: a type for each element type, rows converted for half floats.
#pragma once

#include <string>
#include <utility>

#include "kernel.h"
#include "row_table.h"

namespace graphkit {

template <typename T>
constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

inline bool is_float(ElementType type) {
    return type <= ElementType::bf16;
}

inline bool is_half(ElementType type) {
    return type == ElementType::f16 || type == ElementType::bf16;
}

// Throws Unsupported for a type that is not a float.
inline ElementType float_type(const std::string& name) {
    const ElementType type = element_type(name);
    if (!is_float(type)) {
        throw Unsupported("elements of type " + name + " have no native kernel for functions of floats");
    }
    return type;
}

// body.operator()<T>() with the type of a float element.
template <typename Body>
decltype(auto) with_float_type(ElementType type, Body&& body) {
    switch (type) {
        case ElementType::f64:
            return std::forward<Body>(body).template operator()<double>();
        case ElementType::f16:
            return std::forward<Body>(body).template operator()<Float16>();
        case ElementType::bf16:
            return std::forward<Body>(body).template operator()<BFloat16>();
        default:
            return std::forward<Body>(body).template operator()<float>();
    }
}

inline std::size_t aligned(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// `from` itself where T is wide, else `buffer`, which then holds its elements.
template <typename T>
const Wide<T>* widened(const T* from, Wide<T>* buffer, std::int64_t size) {
    if constexpr (kIsHalf<T>) {
        row_table().widen(from, buffer, size);
        return buffer;
    } else {
        return from;
    }
}

// Where to compute what belongs to `to`: `to` itself where T is wide, else `buffer`; `narrowed` brings it home.
template <typename T>
Wide<T>* target(T* to, Wide<T>* buffer) {
    if constexpr (kIsHalf<T>) {
        return buffer;
    } else {
        return to;
    }
}

template <typename T>
void narrowed(const Wide<T>* buffer, T* to, std::int64_t size) {
    if constexpr (kIsHalf<T>) {
        row_table().narrow(buffer, to, size);
    }
}

}  // namespace graphkit
