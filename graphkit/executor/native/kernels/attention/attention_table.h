// Scaled dot-product attention of a block of queries, compiled for several instruction sets.
#pragma once

#include <cstdint>

#include "runtime/isa.h"

namespace graphkit {

// What changes the scores of a block of queries.
struct ScoreMask {
    // One of them or none. The mask of row i and key j is element i * mask_row + j * mask_key.
    const float* added;           // to the scores
    const std::uint8_t* visible;  // where it is 0, the score is hidden_score
    std::int64_t mask_row, mask_key;
    float hidden_score;

    // Row i sees the keys up to causal_offset + i; `keys` or more where all are seen.
    std::int64_t causal_offset;
};

// Up to `queries` rows of q against all keys. Elements of a row are neighbours; strides lie between rows.
struct AttentionBlock : ScoreMask {
    const float* q;  // `rows` rows of `depth`
    const float* k;  // `keys` rows of `depth`
    const float* v;  // `keys` rows of `value_depth`
    float* y;        // `rows` rows of `value_depth`
    std::int64_t rows, keys, depth, value_depth;
    std::int64_t q_stride, k_stride, v_stride, y_stride;
    float scale;

    // Of each row, [rows]: the largest score, and the sum of exp(score - largest). These and y are null if they are not
    // wanted.
    float* largest;
    float* total;

    // Of few rows: the first keys and values may lie elsewhere, and all of them be copied to one place as they are
    // read. Rows are side by side in all of these. kept_k, kept_v: where to; null for what is
    // not copied.
    std::int64_t past;  // rows
    const float* past_k;
    const float* past_v;
    float* kept_k;
    float* kept_v;
    void (*copy)(float* to, const float* from, std::int64_t floats);
};

struct AttentionTable {
    std::int64_t queries;  // the most rows of a block
    std::int64_t few;      // rows of a block that counts as one of few
    // Floats of working memory, aligned to kAlignment.
    std::int64_t (*memory)(std::int64_t depth, std::int64_t value_depth);
    void (*run)(const AttentionBlock& block, float* memory);
};

GRAPHKIT_ISA_TABLE(AttentionTable, attention_table);

}  // namespace graphkit
