// Sizes of arrays in bytes, and copies of memory.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "runtime/kernel.h"

namespace graphkit {

inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
    if (to != from && bytes != 0) {
        std::memcpy(to, from, bytes);
    }
}

// Memory could not be allocated. Instance::run_step adds the name of the step.
struct NoRoom : std::bad_alloc {
    explicit NoRoom(std::size_t wanted) : bytes(wanted) {}
    std::size_t bytes;
};

// Returns the size of an array in bytes. Throws NoRoom if it does not fit into std::size_t.
inline std::size_t bytes_of(const Dims& shape, std::size_t item) {
    std::size_t bytes = item;
    bool counted = true;
    for (const std::int64_t size : shape) {
        counted = !__builtin_mul_overflow(bytes, static_cast<std::size_t>(size), &bytes) && counted;
    }
    if (!counted && std::find(shape.begin(), shape.end(), 0) == shape.end()) {
        throw NoRoom(std::numeric_limits<std::size_t>::max());
    }
    return bytes;
}

// Returns the bytes of one row: of an array without its first axis.
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
