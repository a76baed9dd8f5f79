// For kernels that compute in float or double: a C++ type for each element type, and conversion of float16 and
// bfloat16 rows.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "primitives/row_table.h"
#include "runtime/kernel.h"

namespace graphkit {

template <typename T>
constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

inline bool is_float(ElementType type) {
    return type <= ElementType::bf16;
}

inline bool is_half(ElementType type) {
    return type == ElementType::f16 || type == ElementType::bf16;
}

// Returns the element type. Throws Unsupported if it is not a float.
inline ElementType float_type(const std::string& name) {
    const ElementType type = element_type(name);
    if (!is_float(type)) {
        throw Unsupported("elements of type " + name + " have no native kernel for functions of floats");
    }
    return type;
}

// Calls body.operator()<T>(), where T is the C++ type of a float element type.
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

// Returns `from` itself if T is float or double; else fills `buffer` with the converted elements and returns it.
template <typename T>
const Wide<T>* widened(const T* from, Wide<T>* buffer, std::int64_t size) {
    if constexpr (kIsHalf<T>) {
        row_table().widen(from, buffer, size);
        return buffer;
    } else {
        return from;
    }
}

// Returns the memory in which to compute the results for `to`: `to` itself if T is float or double, else `buffer`.
// `narrowed` then converts the results and stores them.
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

// Elements that are converted together, in a buffer on the stack.
constexpr std::int64_t kHalfBlock = 1024;

// A buffer for the converted elements of a block of T.
template <typename T>
using Block = Wide<T>[kIsHalf<T> ? kHalfBlock : 1];

// Calls body(begin, size) for blocks that fit into a Block<T>: a single block if T is float or double.
template <typename T, typename Body>
void for_each_block(std::int64_t size, Body&& body) {
    const std::int64_t step = kIsHalf<T> ? kHalfBlock : size;
    for (std::int64_t at = 0; at < size; at += step) {
        body(at, std::min(step, size - at));
    }
}

// Converts the elements of an array of any float type to W.
template <typename W>
void load_floats(const void* from, ElementType type, W* to, std::int64_t size) {
    with_float_type(type, [&]<typename T>() {
        const auto* source = static_cast<const T*>(from);
        if constexpr (kIsHalf<T> && std::is_same_v<W, float>) {
            row_table().widen(source, to, size);
        } else {
            for (std::int64_t i = 0; i < size; ++i) {
                Wide<T> buffer;
                to[i] = static_cast<W>(*widened(source + i, &buffer, 1));
            }
        }
    });
}

template <typename W>
void store_floats(const W* from, void* to, ElementType type, std::int64_t size) {
    with_float_type(type, [&]<typename T>() {
        auto* target = static_cast<T*>(to);
        for (std::int64_t i = 0; i < size; ++i) {
            if constexpr (kIsHalf<T>) {
                const auto value = static_cast<float>(from[i]);
                row_table().narrow(&value, target + i, 1);
            } else {
                target[i] = static_cast<T>(from[i]);
            }
        }
    });
}

}  // namespace graphkit
