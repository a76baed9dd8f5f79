// The gradient of attention for a block of queries and a part of the keys, compiled for several instruction sets.
#pragma once

#include <cstdint>

#include "kernels/attention/attention_table.h"

namespace graphkit {

// Up to `queries` rows, and keys [first_key, last_key), at least one. The elements of a row are contiguous; strides are
// those between rows. k, v, dk, dv begin at key 0 of the head, all other arrays at the first row of the block.
struct AttentionGradientBlock : ScoreMask {
    const float* q;  // `rows` rows of `depth`
    const float* k;  // rows of `depth`
    const float* v;  // rows of `value_depth`
    const float* y;  // `rows` rows of `value_depth`; so has dy
    const float* dy;
    const float* largest;  // [rows]: statistics of the forward pass
    const float* total;
    float* dq;  // `rows` rows of `depth`, which are overwritten
    float* dk;  // rows of k and v, to which the block's gradients are added; dq, dk, dv may be null
    float* dv;
    std::int64_t rows, first_key, last_key, depth, value_depth;
    std::int64_t q_stride, k_stride, v_stride, y_stride, dq_stride;
    float scale;
};

struct AttentionGradientTable {
    std::int64_t queries;  // largest number of rows of a block
    // Returns the floats of working memory, which is aligned to kAlignment.
    std::int64_t (*memory)(std::int64_t depth, std::int64_t value_depth);
    void (*run)(const AttentionGradientBlock& block, float* memory);
};

GRAPHKIT_ISA_TABLE(AttentionGradientTable, attention_gradient_table);

}  // namespace graphkit
