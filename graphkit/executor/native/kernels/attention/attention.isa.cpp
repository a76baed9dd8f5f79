// Scaled dot-product attention of a block of queries.
//
// Everything lies with the queries side by side, so that a vector holds one number of each of several queries: maxima
// and sums over keys need no reduction within vectors, keys and values are read where they lie, element by element, and
// only the few queries are transposed. Keys come in blocks; the running maximum, sum and result of each query are
// corrected from block to block (Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135).
#include "kernels/attention/attention_table.h"
#include "kernels/attention/few_queries.h"
#include "simd/exp.h"

namespace graphkit {
namespace {

// A tile of products has kTileRows x Width accumulators, which fill the registers.
#if defined(__AVX512F__)
constexpr int kTileRows = 12;
#else
constexpr int kTileRows = 6;
#endif
constexpr int kMostWidth = 2;  // vectors of queries
constexpr std::int64_t kKeyBlock = 96;
constexpr float kInfinite = std::numeric_limits<float>::infinity();

using Lanes = Vector<float>;

// Working memory of a block whose rows are Width vectors.
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

using Quad = VectorOf<float, 16>::type;

inline void transpose(Quad (&r)[4]) {
    const Quad low01 = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
    const Quad low23 = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
    const Quad high01 = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
    const Quad high23 = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
    r[0] = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
    r[1] = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
    r[2] = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
    r[3] = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
}

// Calls whole(i, j) for tiles of 4 x 4 elements and single(i, j) for the others of [0, rows) x [0, columns).
template <typename Whole, typename Single>
inline void for_each_tile(std::int64_t rows, std::int64_t columns, Whole&& whole, Single&& single) {
    std::int64_t i = 0;
    for (; i + 4 <= rows; i += 4) {
        std::int64_t j = 0;
        for (; j + 4 <= columns; j += 4) {
            whole(i, j);
        }
        for (; j < columns; ++j) {
            for (std::int64_t row = i; row < i + 4; ++row) {
                single(row, j);
            }
        }
    }
    for (; i < rows; ++i) {
        for (std::int64_t j = 0; j < columns; ++j) {
            single(i, j);
        }
    }
}

// to[j * to_stride + i] = map(from[i * from_stride + j], to[...]) on numbers and on Quads alike.
template <typename Map>
inline void transpose_into(const float* from, std::int64_t from_stride, std::int64_t rows, std::int64_t columns,
                           float* to, std::int64_t to_stride, Map&& map) {
    for_each_tile(
        rows, columns,
        [&](std::int64_t i, std::int64_t j) {
            Quad tile[4];
            for (int r = 0; r < 4; ++r) {
                __builtin_memcpy(&tile[r], from + (i + r) * from_stride + j, sizeof(Quad));
            }
            transpose(tile);
            for (int r = 0; r < 4; ++r) {
                float* target = to + (j + r) * to_stride + i;
                Quad old;
                __builtin_memcpy(&old, target, sizeof(Quad));
                const Quad mapped = map(tile[r], old);
                __builtin_memcpy(target, &mapped, sizeof(Quad));
            }
        },
        [&](std::int64_t i, std::int64_t j) {
            float& target = to[j * to_stride + i];
            target = map(from[i * from_stride + j], target);
        });
}

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

// total[r][w] += rows(r, i) * columns[i * stride + w * lanes] over i < depth.
template <int Rows, int Width, typename Element>
inline void multiply(std::int64_t depth, Element&& element, const float* columns, Lanes (&total)[Rows][Width]) {
    for (std::int64_t i = 0; i < depth; ++i) {
        Lanes column[Width];
#pragma GCC unroll 2
        for (int w = 0; w < Width; ++w) {
            column[w] = load(columns + (i * Width + w) * kLanes<float>);
        }
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r) {
            const Lanes factor = splat(element(r, i));
#pragma GCC unroll 2
            for (int w = 0; w < Width; ++w) {
                total[r][w] += factor * column[w];
            }
        }
    }
}

// Calls body.operator()<Rows>(first) for tiles of at most kTileRows of `rows`.
template <typename Body>
inline void for_each_row_tile(std::int64_t rows, Body&& body) {
    std::int64_t row = 0;
    for (; row + kTileRows <= rows; row += kTileRows) {
        body.template operator()<kTileRows>(row);
    }
    for (; row + 4 <= rows; row += 4) {
        body.template operator()<4>(row);
    }
    for (; row < rows; ++row) {
        body.template operator()<1>(row);
    }
}

// The scores of keys [first, first + keys).
template <int Width>
void score(const AttentionBlock& block, std::int64_t first, std::int64_t keys, Workspace<Width>& work) {
    for_each_row_tile(keys, [&]<int Rows>(std::int64_t row) {
        const float* k = block.k + (first + row) * block.k_stride;
        const std::int64_t stride = block.k_stride;
        Lanes total[Rows][Width] = {};
        multiply<Rows, Width>(
            block.depth, [&](int r, std::int64_t i) { return k[r * stride + i]; }, work.queries, total);
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
            for (int w = 0; w < Width; ++w) {
                store(work.scores + ((row + r) * Width + w) * kLanes<float>, total[r][w]);
            }
        }
    });
}

template <int Width>
void mask_scores(const AttentionBlock& block, std::int64_t first, std::int64_t keys, Workspace<Width>& work) {
    constexpr std::int64_t width = Workspace<Width>::kQueries;
    const auto for_each_key_vector = [&](auto&& body) {
        for (std::int64_t key = 0; key < keys; ++key) {
            for (int w = 0; w < Width; ++w) {
                float* at = work.scores + key * width + w * kLanes<float>;
                store(at, body(first + key, w, load(at)));
            }
        }
    };
    if (block.added != nullptr) {
        if (block.mask_row == 0) {
            for_each_key_vector([&](std::int64_t key, int, Lanes s) { return s + block.added[key * block.mask_key]; });
        } else if (block.mask_key == 1) {
            transpose_into(block.added + first, block.mask_row, block.rows, keys, work.scores, width,
                           [](auto mask, auto s) { return s + mask; });
        } else {
            for (std::int64_t key = 0; key < keys; ++key) {
                for (std::int64_t row = 0; row < block.rows; ++row) {
                    const std::int64_t at = row * block.mask_row + (first + key) * block.mask_key;
                    work.scores[key * width + row] += block.added[at];
                }
            }
        }
    } else if (block.visible != nullptr) {
        if (block.mask_row == 0) {
            for_each_key_vector([&](std::int64_t key, int, Lanes s) {
                return block.visible[key * block.mask_key] != 0 ? s : splat(block.hidden_score);
            });
        } else {
            for (std::int64_t row = 0; row < block.rows; ++row) {
                const std::uint8_t* visible = block.visible + row * block.mask_row + first * block.mask_key;
                for (std::int64_t key = 0; key < keys; ++key) {
                    float& s = work.scores[key * width + row];
                    s = visible[key * block.mask_key] != 0 ? s : block.hidden_score;
                }
            }
        }
    }
    if (first + keys - 1 > block.causal_offset) {
        Vector<float> lane{};
        for (int i = 0; i < kLanes<float>; ++i) {
            lane[i] = static_cast<float>(i);
        }
        for_each_key_vector([&](std::int64_t key, int w, Lanes s) {
            // The first lane that sees the key.
            const std::int64_t seen = key - block.causal_offset - w * kLanes<float>;
            const std::int64_t bound = seen < 0 ? 0 : seen < kLanes<float> ? seen : kLanes<float>;
            return lane < static_cast<float>(bound) ? splat(-kInfinite) : s;
        });
    }
}

// From scores to exp(score - largest), with the running maximum and sum.
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
        // Where everything was hidden so far, the sum stays 0.
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

// result = result * correction + the values of keys [first, first + keys), weighted; `begins` where there is none yet.
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
        multiply<Rows, Width>(keys, [&](int r, std::int64_t i) { return v[i * stride + r]; }, work.scores, total);
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
        // Of no keys there is no sum that their scores leave empty.
        const Lanes factor = block.keys == 0 ? Lanes{} : 1.0F / work.sum[w];
        for (std::int64_t i = 0; i < block.value_depth; ++i) {
            float* at = work.result + i * width + w * kLanes<float>;
            store(at, load(at) * factor);
        }
    }
    transpose_into(work.result, width, block.value_depth, block.rows, block.y, block.y_stride,
                   [](auto value, auto) { return value; });
}

template <int Width>
void attend(const AttentionBlock& block, float* memory) {
    Workspace<Width> work(memory, block.depth);
    for (int w = 0; w < Width; ++w) {
        work.largest[w] = splat(-kInfinite);
        work.sum[w] = Lanes{};
    }
    load_queries(block, work);
    const std::int64_t seen = block.causal_offset + block.rows;  // by the last row
    const std::int64_t keys = seen < 0 ? 0 : seen < block.keys ? seen : block.keys;
    for (std::int64_t first = 0; first < keys; first += kKeyBlock) {
        const std::int64_t count = keys - first < kKeyBlock ? keys - first : kKeyBlock;
        score(block, first, count, work);
        mask_scores(block, first, count, work);
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
    if (block.rows <= kFewQueries) {
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
