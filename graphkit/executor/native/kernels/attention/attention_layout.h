// Where the heads and rows of attention's operands lie.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "runtime/kernel.h"

namespace graphkit {

// Strides of an operand [batch, heads, rows, columns], or [batch, rows, heads, columns] with the heads last. Elements
// of a row are neighbours.
struct HeadRows {
    std::int64_t batch, head, row;
    std::int64_t offset(std::int64_t n, std::int64_t h) const { return n * batch + h * head; }
};

inline HeadRows head_rows(std::int64_t heads, std::int64_t rows, std::int64_t columns, bool heads_last) {
    const std::int64_t batch = heads * rows * columns;
    return heads_last ? HeadRows{batch, columns, heads * columns} : HeadRows{batch, rows * columns, columns};
}

// Strides of a mask that broadcasts to `scores` [batch, heads, rows, keys]; 0 where it broadcasts. `kernel` describes
// the kernel in the error.
inline std::array<std::int64_t, 4> mask_strides(const Dims& mask, const Dims& scores, const std::string& kernel) {
    std::array<std::int64_t, 4> strides{};
    const Dims own = row_major(mask);
    const std::size_t missing = 4 - std::min<std::size_t>(mask.size(), 4);
    for (std::size_t i = 0; i < mask.size(); ++i) {
        if (mask.size() > 4 || (mask[i] != 1 && mask[i] != scores[missing + i])) {
            throw NativeError(kernel + ": the mask does not broadcast to " + to_string(scores));
        }
        strides[missing + i] = mask[i] == 1 ? 0 : own[i];
    }
    return strides;
}

}  // namespace graphkit
