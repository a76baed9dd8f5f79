// Copies between arrays of any strides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace graphkit {

// Memory of an array: element (i, j, ...) is at data + i * strides[0] + j * strides[1] + ... bytes.
struct StridedArray {
    std::byte* data;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;
    std::size_t item;  // bytes of an element
};

// Copies all elements of `source`, which must have the shape and the element size of `target`. If the two overlap, the
// result is as if all elements were read first. Throws std::bad_alloc.
void copy_strided(const StridedArray& source, const StridedArray& target);

}  // namespace graphkit
