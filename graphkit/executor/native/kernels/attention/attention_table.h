// Scaled dot-product attention of a block of queries, compiled for several instruction sets.
#pragma once

#include <cstdint>

#include "runtime/isa.h"

namespace graphkit {

// The mask of the scores of a block of queries.
struct ScoreMask {
    // At most one of the two is set. The mask of row i and key j is element i * mask_row + j * mask_key.
    const float* added;           // is added to the scores
    const std::uint8_t* visible;  // where it is 0, the score is hidden_score
    std::int64_t mask_row, mask_key;
    float hidden_score;

    // Row i sees the keys up to causal_offset + i. If not causal: at least `keys`.
    std::int64_t causal_offset;
};

// Up to `queries` rows of q, and all keys. The elements of a row are contiguous; strides are those between rows.
struct AttentionBlock : ScoreMask {
    const float* q;  // `rows` rows of `depth`
    const float* k;  // `keys` rows of `depth`
    const float* v;  // `keys` rows of `value_depth`
    float* y;        // `rows` rows of `value_depth`
    std::int64_t rows, keys, depth, value_depth;
    std::int64_t q_stride, k_stride, v_stride, y_stride;
    float scale;

    // [rows]: the largest score of each row, and its sum of exp(score - largest). Null if not used; y may be null, too.
    float* largest;
    float* total;

    // For blocks of at most `few` rows: the first keys and values may be at another place, and the block may copy all
    // of them to one place while it reads them. All these rows are contiguous. kept_k, kept_v: the destination; null if
    // nothing is copied.
    std::int64_t past;  // number of rows in past_k and past_v
    const float* past_k;
    const float* past_v;
    float* kept_k;
    float* kept_v;
    void (*copy)(float* to, const float* from, std::int64_t floats);
};

struct AttentionTable {
    std::int64_t queries;  // largest number of rows of a block
    std::int64_t few;      // largest number of rows of a block that attend_few computes
    // Returns the floats of working memory, which is aligned to kAlignment.
    std::int64_t (*memory)(std::int64_t depth, std::int64_t value_depth);
    void (*run)(const AttentionBlock& block, float* memory);
};

GRAPHKIT_ISA_TABLE(AttentionTable, attention_table);

}  // namespace graphkit
