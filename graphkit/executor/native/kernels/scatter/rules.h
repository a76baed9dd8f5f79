// How updates are combined with elements: the loops that depend on the element type and on the reduction. The rest is
// compiled once, in scatter.cpp.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/kernel.h"

namespace graphkit {

enum class ScatterReduction : std::uint8_t { none, add, mul, min, max };

struct ScatterRule {
    struct Window {
        std::int64_t rows;
        std::int64_t columns;
        std::int64_t stride;
        std::int64_t size;
        std::int64_t step;
    };
    struct SliceWindow {
        std::int64_t updates;
        std::int64_t slice;  // elements of a slice
        std::int64_t size;
        std::int64_t begin;
        std::int64_t end;
        std::int64_t first;
        std::int64_t last;
    };

    std::int64_t element_bytes;  // of y; wider than that of float16 and bfloat16 updates
    std::int64_t update_bytes;
    // One function for each index type. Combines y[index(a, j) * step + j] with updates[a * stride + j] for `rows`
    // times `columns` elements. index(a, j) is indices[a * stride + j], an index of `size` elements, counted from the
    // end if negative.
    void (*elements[2])(void* y, const void* updates, const void* indices, const Window& window);
    // One function for each index type. For each slice u of the updates, combines its columns [first, last) with slice
    // indices[u] of y, if that index is in [begin, end). Indices are those of `size` slices, counted from the end if
    // negative.
    void (*slices[2])(void* y, const void* updates, const void* indices, const SliceWindow& window);

    static int number_of(ElementType indices) { return indices == ElementType::i32 ? 0 : 1; }
};

// Returns the rule for an element type. Rules are never destroyed.
const ScatterRule* scatter_rule(ElementType type, ScatterReduction reduction);

// Converts ONNX's name of a reduction. Throws NativeError for any other name.
ScatterReduction scatter_reduction(const std::string& name);

}  // namespace graphkit
