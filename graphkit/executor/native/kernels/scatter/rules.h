// How updates are combined with elements: the loops that depend on the type of elements and on the reduction. All else
// is compiled once, in scatter.cpp.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/kernel.h"

namespace graphkit {

enum class ScatterReduction : std::uint8_t { none, add, mul, min, max };

struct ScatterRule {
    std::int64_t element_bytes;  // of y, which has a wider type than updates of half floats
    std::int64_t update_bytes;
    // y[offsets[a, j] + j] with updates[a * stride + j], for `rows` times `columns` elements.
    void (*elements)(void* y, const void* updates, const std::int64_t* offsets, std::int64_t rows, std::int64_t columns,
                     std::int64_t stride);
    // Columns [first, last) of slice u of the updates with those of slice targets[u] of y, if that is in [begin, end).
    void (*slices)(void* y, const void* updates, const std::int64_t* targets, std::int64_t updates_count,
                   std::int64_t slice, std::int64_t begin, std::int64_t end, std::int64_t first, std::int64_t last);
};

// For elements of a type. Rules live as long as the process.
const ScatterRule* scatter_rule(ElementType type, ScatterReduction reduction);

// By ONNX's name. Throws NativeError for any other.
ScatterReduction scatter_reduction(const std::string& name);

}  // namespace graphkit
