// Bytes of arrays, and copies of them.
#pragma once

#include <cstring>

#include "kernel.h"

namespace graphkit {

inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
    if (to != from && bytes != 0) {
        std::memcpy(to, from, bytes);
    }
}

inline std::size_t bytes_of(const Dims& shape, std::size_t item) {
    return static_cast<std::size_t>(count(shape)) * item;
}

// Of an array without its first axis.
inline std::size_t row_bytes(const Dims& shape, std::size_t item) {
    std::size_t bytes = item;
    for (std::size_t axis = 1; axis < shape.size(); ++axis) {
        bytes *= static_cast<std::size_t>(shape[axis]);
    }
    return bytes;
}

inline void* at(void* start, std::int64_t offset) {
    return static_cast<std::byte*>(start) + offset;
}

}  // namespace graphkit
