// The gradient of scaled dot-product attention, for a block of queries and a part of the keys.
//
// The weights are recomputed, block by block, from the scores and the statistics of the forward pass, so that memory is
// linear in the number of positions (Dao et al. 2022, arXiv:2205.14135; Dao 2023, arXiv:2307.08691):
//
//   p = exp(score - largest) / total, dv += p^T dy, ds = p * (dy v^T - sum(dy * y)), dk += scale * ds^T q, dq = scale *
//   ds k
//
// Scores and weights have the queries as their last axis, as in the forward pass, in panels of kPanel queries. The rows
// of dq, dk and dv are in place. The factors whose columns become those of a gradient (q, dy and k) are copied to rows
// that are padded with zeros to whole vectors.
#include <utility>

#include "kernels/attention/attention_gradient_table.h"
#include "kernels/attention/attention_tiles.h"
#include "simd/exp.h"

namespace graphkit {
namespace {

constexpr std::int64_t kPanel = kMostWidth * kLanes<float>;
constexpr std::int64_t kGradientQueries = 64;
constexpr std::int64_t kPanels = kGradientQueries / kPanel;
constexpr std::int64_t kPanelScores = kKeyBlock * kPanel;
static_assert(kGradientQueries % kPanel == 0);

inline std::int64_t whole_vectors(std::int64_t columns) {
    return (columns + kLanes<float> - 1) / kLanes<float> * kLanes<float>;
}

struct GradientWork {
    GradientWork(float* memory, std::int64_t depth, std::int64_t value_depth)
        : width(whole_vectors(depth)), value_width(whole_vectors(value_depth)) {
        const auto take = [&](std::int64_t floats) { return std::exchange(memory, memory + whole_vectors(floats)); };
        queries = take(kGradientQueries * depth);
        results = take(kGradientQueries * value_depth);
        q = take(kGradientQueries * width);
        dy = take(kGradientQueries * value_width);
        k = take(kKeyBlock * width);
        weights = take(kPanels * kPanelScores);
        scores = take(kPanels * kPanelScores);
        largest = take(kGradientQueries);
        total = take(kGradientQueries);
        factor = take(kGradientQueries);
        spread = take(kGradientQueries);
    }

    static std::int64_t floats(std::int64_t depth, std::int64_t value_depth) {
        return kGradientQueries * (2 * whole_vectors(depth) + 2 * whole_vectors(value_depth) + 4) +
               kKeyBlock * whole_vectors(depth) + 2 * kPanels * kPanelScores;
    }

    std::int64_t width, value_width;
    float* queries;  // [kPanels, depth, kPanel]: q times the scale
    float* results;  // [kPanels, value_depth, kPanel]: dy
    float* q;  // [kGradientQueries, width]: times the scale
    float* dy;  // [kGradientQueries, value_width]
    float* k;  // [kKeyBlock, width]
    float* weights;  // [kPanels, kKeyBlock, kPanel]
    float* scores;  // [kPanels, kKeyBlock, kPanel]: their gradients
    float* largest;  // [kGradientQueries], like the next ones; 0 for a query that sees no key
    float* total;
    float* factor;  // 1 / total
    float* spread;  // sum(dy * y)
    bool divides = false;  // whether 1 / total overflows for a query with total != 0
};

// Copies rows of `columns`, multiplied by `factor`, and pads them with zeros to `width` columns.
inline void copy_rows(const float* from, std::int64_t stride, std::int64_t rows, std::int64_t columns, float factor,
                      float* to, std::int64_t width) {
    for (std::int64_t row = 0; row < rows; ++row, from += stride, to += width) {
        std::int64_t i = 0;
        for (; i + kLanes<float> <= columns; i += kLanes<float>) {
            store(to + i, load(from + i) * factor);
        }
        if (i < columns) {
            store(to + i, load_part(from + i, columns - i, 0.0F) * factor);
        }
    }
}

// Copies `rows` rows of `columns`, multiplied by `factor`, into panels [columns, kPanel], padded with zeros.
inline void copy_panels(const float* from, std::int64_t stride, std::int64_t rows, std::int64_t columns, float factor,
                        float* to) {
    for (std::int64_t first = 0; first < rows; first += kPanel, from += kPanel * stride, to += columns * kPanel) {
        const std::int64_t count = rows - first < kPanel ? rows - first : kPanel;
        if (count < kPanel) {
            for (std::int64_t i = 0; i < columns * kPanel; ++i) {
                to[i] = 0;
            }
        }
        transpose_into(from, stride, count, columns, to, kPanel, [&](auto x, auto) { return x * factor; });
    }
}

inline void load_block(const AttentionGradientBlock& block, GradientWork& work) {
    copy_panels(block.q, block.q_stride, block.rows, block.depth, block.scale, work.queries);
    copy_panels(block.dy, block.y_stride, block.rows, block.value_depth, 1, work.results);
    copy_rows(block.q, block.q_stride, block.rows, block.depth, block.scale, work.q, work.width);
    copy_rows(block.dy, block.y_stride, block.rows, block.value_depth, 1, work.dy, work.value_width);
    for (std::int64_t row = 0; row < kGradientQueries; ++row) {
        work.largest[row] = work.factor[row] = work.spread[row] = 0;
        work.total[row] = 1;
    }
    for (std::int64_t row = 0; row < block.rows; ++row) {
        work.largest[row] = block.largest[row] == -kInfinite ? 0 : block.largest[row];
        work.total[row] = block.total[row];
        work.factor[row] = 1 / block.total[row];
        work.divides = work.divides || (block.total[row] > 0 && work.factor[row] == kInfinite);
        const float* y = block.y + row * block.y_stride;
        const float* dy = work.dy + row * work.value_width;
        Lanes sum{};
        for (std::int64_t i = 0; i < block.value_depth; i += kLanes<float>) {
            const std::int64_t rest = block.value_depth - i;
            sum += load(dy + i) * (rest < kLanes<float> ? load_part(y + i, rest, 0.0F) : load(y + i));
        }
        work.spread[row] = across<Add, float>(sum);
    }
}

// Computes, for a panel of `rows` queries, the weights of keys [first, first + keys) and the gradients of their scores.
inline void weigh(const AttentionGradientBlock& block, const ScoreMask& mask, std::int64_t panel, std::int64_t rows,
                  std::int64_t first, std::int64_t keys, GradientWork& work) {
    float* weights = work.weights + panel * kPanelScores;
    float* scores = work.scores + panel * kPanelScores;
    multiply_queries<kMostWidth>(work.k, work.width, keys, block.depth, work.queries + panel * block.depth * kPanel,
                                 weights);
    multiply_queries<kMostWidth>(block.v + first * block.v_stride, block.v_stride, keys, block.value_depth,
                                 work.results + panel * block.value_depth * kPanel, scores);
    mask_scores<kMostWidth>(mask, rows, first, keys, weights);
    Lanes largest[kMostWidth];
    Lanes factor[kMostWidth];
    Lanes spread[kMostWidth];
    for (int w = 0; w < kMostWidth; ++w) {
        const std::int64_t at = panel * kPanel + w * kLanes<float>;
        largest[w] = load(work.largest + at);
        factor[w] = load(work.factor + at);
        spread[w] = load(work.spread + at);
    }
    const auto weigh_all = [&](auto&& over_total) {
        for (std::int64_t key = 0; key < keys; ++key) {
#pragma GCC unroll 2
            for (int w = 0; w < kMostWidth; ++w) {
                const std::int64_t at = key * kPanel + w * kLanes<float>;
                const Lanes weight = over_total(exp_of_negative<float>(load(weights + at) - largest[w]), w);
                store(weights + at, weight);
                store(scores + at, weight * (load(scores + at) - spread[w]));
            }
        }
    };
    if (work.divides) {
        weigh_all([&](Lanes raised, int w) { return raised / load(work.total + panel * kPanel + w * kLanes<float>); });
    } else {
        weigh_all([&](Lanes raised, int w) { return raised * factor[w]; });
    }
    // Scores that a mask replaced do not depend on q and k: their gradient is 0.
    hide_invisible<kMostWidth>(mask, rows, first, keys, 0, scores);
    hide_future<kMostWidth>(mask, first, keys, 0, scores);
}

// Adds products to `rows` rows of `columns` at `target`, or overwrites them if `begins`. multiply.operator()<Rows,
// Width>(row, column, total) adds the products of `Rows` rows and `Width` vectors of columns to `total`.
template <typename Multiply>
inline void add_products(std::int64_t rows, std::int64_t columns, float* target, std::int64_t stride, bool begins,
                         Multiply&& multiply_tile) {
    for_each_row_tile(rows, [&]<int Rows>(std::int64_t row) {
        float* at = target + row * stride;
        const auto tile = [&]<int Width>(std::int64_t column, auto&& read, auto&& write) {
            Lanes total[Rows][Width] = {};
            multiply_tile.template operator()<Rows, Width>(row, column, total);
#pragma GCC unroll 12
            for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
                for (int w = 0; w < Width; ++w) {
                    float* to = at + r * stride + column + w * kLanes<float>;
                    write(to, begins ? total[r][w] : read(to) + total[r][w]);
                }
            }
        };
        const auto read = [](const float* from) { return load(from); };
        const auto write = [](float* to, Lanes x) { store(to, x); };
        std::int64_t column = 0;
        for (; column + 2 * kLanes<float> <= columns; column += 2 * kLanes<float>) {
            tile.template operator()<2>(column, read, write);
        }
        if (column + kLanes<float> <= columns) {
            tile.template operator()<1>(column, read, write);
            column += kLanes<float>;
        }
        if (const std::int64_t rest = columns - column; rest > 0) {
            tile.template operator()<1>(
                column, [&](const float* from) { return load_part(from, rest, 0.0F); },
                [&](float* to, Lanes x) { store_part(to, x, rest); });
        }
    });
}

// target[keys] += panels^T [keys, queries] times rows of `width` floats, one for each query.
inline void add_to_keys(const float* panels, const float* queries, std::int64_t width, std::int64_t rows,
                        std::int64_t keys, std::int64_t columns, float* target, std::int64_t stride) {
    add_products(keys, columns, target, stride, false,
                 [&]<int Rows, int Width>(std::int64_t row, std::int64_t column, Lanes(&total)[Rows][Width]) {
                     for (std::int64_t first = 0; first < rows; first += kPanel) {
                         const float* panel = panels + first * kKeyBlock + row * kPanel;
                         const std::int64_t count = rows - first < kPanel ? rows - first : kPanel;
                         multiply<Rows, Width>(
                             count, [&](int r, std::int64_t i) { return panel[r * kPanel + i]; },
                             queries + first * width + column, width, total);
                     }
                 });
}

// Adds the term of keys [first, first + keys), without the scale, to the block's dq.
inline void add_to_queries(const AttentionGradientBlock& block, std::int64_t first, std::int64_t keys,
                           const GradientWork& work) {
    for (std::int64_t row = 0; row < block.rows; row += kPanel) {
        const std::int64_t rows = block.rows - row < kPanel ? block.rows - row : kPanel;
        const float* scores = work.scores + row * kKeyBlock;
        add_products(rows, block.depth, block.dq + row * block.dq_stride, block.dq_stride, first == block.first_key,
                     [&]<int Rows, int Width>(std::int64_t query, std::int64_t column, Lanes(&total)[Rows][Width]) {
                         multiply<Rows, Width>(
                             keys, [&](int r, std::int64_t i) { return scores[i * kPanel + query + r]; },
                             work.k + column, work.width, total);
                     });
    }
}

inline void run_gradient(const AttentionGradientBlock& block, float* memory) {
    GradientWork work(memory, block.depth, block.value_depth);
    load_block(block, work);
    for (std::int64_t first = block.first_key; first < block.last_key; first += kKeyBlock) {
        const std::int64_t keys = block.last_key - first < kKeyBlock ? block.last_key - first : kKeyBlock;
        copy_rows(block.k + first * block.k_stride, block.k_stride, keys, block.depth, 1, work.k, work.width);
        ScoreMask mask = block;
        for (std::int64_t row = 0; row < block.rows; row += kPanel) {
            const std::int64_t rows = block.rows - row < kPanel ? block.rows - row : kPanel;
            weigh(block, mask, row / kPanel, rows, first, keys, work);
            mask.causal_offset += kPanel;
            mask.added += mask.added == nullptr ? 0 : kPanel * mask.mask_row;
            mask.visible += mask.visible == nullptr ? 0 : kPanel * mask.mask_row;
        }
        if (block.dv != nullptr) {
            add_to_keys(work.weights, work.dy, work.value_width, block.rows, keys, block.value_depth,
                        block.dv + first * block.v_stride, block.v_stride);
        }
        if (block.dk != nullptr) {
            add_to_keys(work.scores, work.q, work.width, block.rows, keys, block.depth,
                        block.dk + first * block.k_stride, block.k_stride);
        }
        if (block.dq != nullptr) {
            add_to_queries(block, first, keys, work);
        }
    }
    for (std::int64_t row = 0; block.dq != nullptr && row < block.rows; ++row) {
        float* dq = block.dq + row * block.dq_stride;
        for (std::int64_t i = 0; i < block.depth; ++i) {
            dq[i] *= block.scale;
        }
    }
}

constexpr AttentionGradientTable make_attention_gradient_table() {
    return {kGradientQueries, GradientWork::floats, run_gradient};
}

}  // namespace

GRAPHKIT_ISA_DEFINE(AttentionGradientTable, attention_gradient_table) = make_attention_gradient_table();

}  // namespace graphkit
