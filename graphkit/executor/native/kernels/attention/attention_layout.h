// Options of the attention kernels, and the layout of heads and rows in their operands.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/kernel.h"
#include "runtime/operator_kernels.h"

namespace graphkit {

struct AttentionOptions {
    std::optional<Dims> mask;
    bool boolean_mask = false;
    double scale = 1.0;
    double hidden_score = 0.0;  // the score where a boolean mask is false
    bool causal = false;
    bool heads_last = false;
    bool output_heads_last = false;
};

// Reads the options of an attention node. `mask_at`: the position of its mask.
inline AttentionOptions attention_options(const NodeSpec& node, std::size_t mask_at) {
    AttentionOptions options;
    if (node.has_input(mask_at)) {
        const TensorSpec& mask = node.input(mask_at).tensor;
        options.mask = mask.shape;
        options.boolean_mask = mask.type == ElementType::boolean;
    }
    options.scale = node.real("scale");
    options.hidden_score = node.real("mask_value");
    options.causal = node.integer("causal") != 0;
    options.heads_last = node.text("layout") == "NLHD";
    options.output_heads_last = node.text("output_layout") == "NLHD";
    return options;
}

// Strides, in elements, of an operand [batch, heads, rows, columns], or [batch, rows, heads, columns] with heads_last.
// The elements of a row are contiguous.
struct HeadRows {
    std::int64_t batch, head, row;
    std::int64_t offset(std::int64_t n, std::int64_t h) const { return n * batch + h * head; }
};

inline HeadRows head_rows(std::int64_t heads, std::int64_t rows, std::int64_t columns, bool heads_last) {
    const std::int64_t batch = heads * rows * columns;
    return heads_last ? HeadRows{batch, columns, heads * columns} : HeadRows{batch, rows * columns, columns};
}

// Returns the strides of a mask that broadcasts to `scores` [batch, heads, rows, keys]; 0 along axes that it
// broadcasts. `kernel` is for the error.
inline std::array<std::int64_t, 4> mask_strides(const Dims& mask, const Dims& scores, const Kernel& kernel) {
    std::array<std::int64_t, 4> strides{};
    const Dims own = row_major(mask);
    const std::size_t missing = 4 - std::min<std::size_t>(mask.size(), 4);
    for (std::size_t i = 0; i < mask.size(); ++i) {
        if (mask.size() > 4 || (mask[i] != 1 && mask[i] != scores[missing + i])) {
            throw NativeError(kernel.describe() + ": the mask does not broadcast to " + to_string(scores));
        }
        strides[missing + i] = mask[i] == 1 ? 0 : own[i];
    }
    return strides;
}

}  // namespace graphkit
