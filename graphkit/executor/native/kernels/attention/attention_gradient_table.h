// The gradient of attention for a block of queries and a part of the keys, compiled for several instruction sets.
#pragma once

#include <cstdint>

#include "kernels/attention/attention_table.h"

namespace graphkit {

// Up to `queries` rows against keys [first_key, last_key), of which there is one at least. Elements of a row are
// neighbours; strides lie between rows. k, v, dk, dv begin with key 0 of the head, everything else with the first row
// of the block.
struct AttentionGradientBlock : ScoreMask {
    const float* q;  // `rows` rows of `depth`
    const float* k;  // rows of `depth`
    const float* v;  // rows of `value_depth`
    const float* y;  // `rows` rows of `value_depth`, and dy as well
    const float* dy;
    const float* largest;  // [rows]: statistics of the forward pass
    const float* total;
    float* dq;  // `rows` rows of `depth`, which are overwritten
    float* dk;  // the gradients of the block are added to rows of k and v; each of the three may be null
    float* dv;
    std::int64_t rows, first_key, last_key, depth, value_depth;
    std::int64_t q_stride, k_stride, v_stride, y_stride, dq_stride;
    float scale;
};

struct AttentionGradientTable {
    std::int64_t queries;  // the most rows of a block
    // Floats of working memory, aligned to kAlignment.
    std::int64_t (*memory)(std::int64_t depth, std::int64_t value_depth);
    void (*run)(const AttentionGradientBlock& block, float* memory);
};

GRAPHKIT_ISA_TABLE(AttentionGradientTable, attention_gradient_table);

}  // namespace graphkit
