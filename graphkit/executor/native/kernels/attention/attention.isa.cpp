// Scaled dot-product attention of a block of queries.
//
// All working arrays have the queries as their last axis, so that a vector holds the same number of several queries.
// Then maxima and sums over keys need no reduction within a vector, keys and values are read in place, element by
// element, and only the few queries are transposed. Keys are processed in blocks; after each block, the running
// maximum, sum and result of each query are corrected (Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022,
// arXiv:2205.14135).
#include "kernels/attention/attention_table.h"
#include "kernels/attention/attention_tiles.h"
#include "kernels/attention/few_queries.h"
#include "simd/exp.h"

namespace graphkit {
namespace {

// Working memory of a block. Its rows have `Width` vectors of queries.
template <int Width>
struct Workspace {
    static constexpr std::int64_t kQueries = Width * kLanes<float>;

    Workspace(float* memory, std::int64_t depth)
        : queries(memory), scores(queries + depth * kQueries), result(scores + kKeyBlock * kQueries) {}

    float* queries;  // [depth, kQueries], times the scale
    float* scores;  // [kKeyBlock, kQueries], then exp(score - largest)
    float* result;  // [value_depth, kQueries]
    Lanes largest[Width];
    Lanes sum[Width];
    Lanes correction[Width];
};

template <int Width>
void load_queries(const AttentionBlock& block, Workspace<Width>& work) {
    constexpr std::int64_t width = Workspace<Width>::kQueries;
    if (block.rows < width) {
        for (std::int64_t i = 0; i < block.depth * width; ++i) {
            work.queries[i] = 0;
        }
    }
    transpose_into(block.q, block.q_stride, block.rows, block.depth, work.queries, width,
                   [&](auto q, auto) { return q * block.scale; });
}

// Replaces scores by exp(score - largest), and updates the running maximum and sum.
template <int Width>
void raise_scores(std::int64_t keys, Workspace<Width>& work) {
#pragma GCC unroll 2
    for (int w = 0; w < Width; ++w) {
        float* scores = work.scores + w * kLanes<float>;
        constexpr std::int64_t width = Workspace<Width>::kQueries;
        const Lanes before = work.largest[w];
        Lanes largest = before;
        for (std::int64_t key = 0; key < keys; ++key) {
            largest = Largest::combine(largest, load(scores + key * width));
        }
        // If all keys so far were hidden, the sum stays 0.
        const Lanes about = largest == -kInfinite ? Lanes{} : largest;
        Lanes sums[2] = {};
        std::int64_t key = 0;
        for (; key + 2 <= keys; key += 2) {
#pragma GCC unroll 2
            for (int way = 0; way < 2; ++way) {
                float* at = scores + (key + way) * width;
                const Lanes raised = exp_of_negative<float>(load(at) - about);
                store(at, raised);
                sums[way] += raised;
            }
        }
        if (key < keys) {
            const Lanes raised = exp_of_negative<float>(load(scores + key * width) - about);
            store(scores + key * width, raised);
            sums[0] += raised;
        }
        work.correction[w] = exp_of_negative<float>(before - about);
        work.sum[w] = work.sum[w] * work.correction[w] + (sums[0] + sums[1]);
        work.largest[w] = largest;
    }
}

// result = result * correction + the weighted values of keys [first, first + keys). With `begins`, there is no result
// yet: it is overwritten.
template <int Width>
void add_values(const AttentionBlock& block, std::int64_t first, std::int64_t keys, bool begins,
                Workspace<Width>& work) {
    for_each_row_tile(block.value_depth, [&]<int Rows>(std::int64_t row) {
        const float* v = block.v + first * block.v_stride + row;
        const std::int64_t stride = block.v_stride;
        float* result = work.result + row * Workspace<Width>::kQueries;
        Lanes total[Rows][Width] = {};
        if (!begins) {
#pragma GCC unroll 12
            for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
                for (int w = 0; w < Width; ++w) {
                    total[r][w] = load(result + (r * Width + w) * kLanes<float>) * work.correction[w];
                }
            }
        }
        multiply<Rows, Width>(
            keys, [&](int r, std::int64_t i) { return v[i * stride + r]; }, work.scores, Workspace<Width>::kQueries,
            total);
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
            for (int w = 0; w < Width; ++w) {
                store(result + (r * Width + w) * kLanes<float>, total[r][w]);
            }
        }
    });
}

template <int Width>
void store_result(const AttentionBlock& block, Workspace<Width>& work) {
    constexpr std::int64_t width = Workspace<Width>::kQueries;
    for (int w = 0; w < Width; ++w) {
        // Without any key, the result is 0, not 0 / 0.
        const Lanes factor = block.keys == 0 ? Lanes{} : 1.0F / work.sum[w];
        for (std::int64_t i = 0; i < block.value_depth; ++i) {
            float* at = work.result + i * width + w * kLanes<float>;
            store(at, load(at) * factor);
        }
    }
    if (block.y != nullptr) {
        transpose_into(work.result, width, block.value_depth, block.rows, block.y, block.y_stride,
                       [](auto value, auto) { return value; });
    }
    for (std::int64_t row = 0; row < block.rows; ++row) {
        if (block.largest != nullptr) {
            block.largest[row] = work.largest[row / kLanes<float>][row % kLanes<float>];
        }
        if (block.total != nullptr) {
            block.total[row] = work.sum[row / kLanes<float>][row % kLanes<float>];
        }
    }
}

template <int Width>
void attend(const AttentionBlock& block, float* memory) {
    Workspace<Width> work(memory, block.depth);
    for (int w = 0; w < Width; ++w) {
        work.largest[w] = splat(-kInfinite);
        work.sum[w] = Lanes{};
    }
    load_queries(block, work);
    const std::int64_t seen = block.causal_offset + block.rows;  // keys that the last row sees
    const std::int64_t keys = seen < 0 ? 0 : seen < block.keys ? seen : block.keys;
    for (std::int64_t first = 0; first < keys; first += kKeyBlock) {
        const std::int64_t count = keys - first < kKeyBlock ? keys - first : kKeyBlock;
        multiply_queries<Width>(block.k + first * block.k_stride, block.k_stride, count, block.depth, work.queries,
                                work.scores);
        mask_scores<Width>(block, block.rows, first, count, work.scores);
        raise_scores(count, work);
        add_values(block, first, count, first == 0, work);
    }
    if (keys == 0) {
        for (std::int64_t i = 0; i < block.value_depth * Workspace<Width>::kQueries; ++i) {
            work.result[i] = 0;
        }
    }
    store_result(block, work);
}

inline void run_attention(const AttentionBlock& block, float* memory) {
    if (block.rows <= kFewQueries && block.y != nullptr) {
        attend_few(block, memory);
    } else if (block.rows <= kLanes<float>) {
        attend<1>(block, memory);
    } else {
        attend<kMostWidth>(block, memory);
    }
}

static_assert(kFewQueries <= kMostWidth * kLanes<float> && kFewKeys <= kKeyBlock);
inline std::int64_t attention_memory(std::int64_t depth, std::int64_t value_depth) {
    return (depth + kKeyBlock + value_depth) * kMostWidth * kLanes<float>;
}

constexpr AttentionTable make_attention_table() {
    return {kMostWidth * kLanes<float>, kFewQueries, attention_memory, run_attention};
}

}  // namespace

GRAPHKIT_ISA_DEFINE(AttentionTable, attention_table) = make_attention_table();

}  // namespace graphkit
