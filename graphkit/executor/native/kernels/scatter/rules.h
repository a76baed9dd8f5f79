// How updates are combined with elements: the loops that depend on the type of elements and on the reduction. All else
// is compiled once, in scatter.cpp.
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
        std::int64_t slice;  // elements
        std::int64_t size;
        std::int64_t begin;
        std::int64_t end;
        std::int64_t first;
        std::int64_t last;
    };

    std::int64_t element_bytes;  // of y, which has a wider type than updates of half floats
    std::int64_t update_bytes;
    // By the type of indices: y[index(a, j) * step + j] with updates[a * stride + j], for `rows` times `columns`
    // elements. The index is indices[a * stride + j], one of `size` or counted from the back.
    void (*elements[2])(void* y, const void* updates, const void* indices, const Window& window);
    // By the type of indices: columns [first, last) of slice u of the updates with those of the slice of y that is
    // indices[u], one of `size` or counted from the back, if that is in [begin, end).
    void (*slices[2])(void* y, const void* updates, const void* indices, const SliceWindow& window);

    static int number_of(ElementType indices) { return indices == ElementType::i32 ? 0 : 1; }
};

// For elements of a type. Rules live as long as the process.
const ScatterRule* scatter_rule(ElementType type, ScatterReduction reduction);

// By ONNX's name. Throws NativeError for any other.
ScatterReduction scatter_reduction(const std::string& name);

}  // namespace graphkit
