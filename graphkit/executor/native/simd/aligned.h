// Where aligned vectors begin in a row. For *.isa.cpp only.
#pragma once

#include "simd/vector.h"

namespace graphkit {
namespace {

// Rows of at least this many vectors are stored in aligned vectors. A vector that crosses the end of a line of the
// cache takes two stores.
constexpr std::int64_t kLeastAligned = 8;

// Returns the number of elements before the first aligned vector of a row; 0 if the row is short. `row` is aligned to
// its elements.
template <typename T>
inline std::int64_t before_aligned(const T* row, std::int64_t size) {
    const auto address = reinterpret_cast<std::uintptr_t>(row);
    const auto bytes = (kVectorBytes - address % kVectorBytes) % kVectorBytes;
    return size < kLeastAligned * kLanes<T> ? 0 : static_cast<std::int64_t>(bytes / sizeof(T));
}

}  // namespace
}  // namespace graphkit
