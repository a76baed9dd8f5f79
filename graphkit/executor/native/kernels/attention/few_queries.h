// Attention of a block of few queries, as in a decoder: reading keys and values takes longer than the arithmetic, so
// they are read once. Vectors run along the elements of keys and values; the scores of a query are contiguous. For
// *.isa.cpp only.
#pragma once

#include "kernels/attention/attention_table.h"
#include "simd/exp.h"

namespace graphkit {
namespace {

constexpr int kFewQueries = 4;
constexpr std::int64_t kFewKeys = 96;  // keys of a block; a multiple of the lanes of any vector

// Sums that are kept in registers at a time.
#if defined(__AVX512F__)
constexpr int kFewSums = 16;
#else
constexpr int kFewSums = 8;
#endif

template <int Rows>
struct FewQueries {
    using Lanes = Vector<float>;
    static constexpr std::int64_t kWide = kLanes<float>;
    static constexpr float kNone = -std::numeric_limits<float>::infinity();
    // How many keys, or how many vectors of a value, are processed together.
    static constexpr int kBeside = kFewSums / Rows;

    const AttentionBlock& block;
    float* scores;  // [Rows, kFewKeys], then exp(score - largest)
    float largest[Rows];
    float sum[Rows];
    float correction[Rows];

    FewQueries(const AttentionBlock& given, float* memory) : block(given), scores(memory) {
        for (int r = 0; r < Rows; ++r) {
            largest[r] = kNone;
            sum[r] = 0;
        }
    }

    // Computes the scores of `Keys` keys at `rows`, from `key` on.
    template <int Keys>
    void score(const float* rows, std::int64_t key) {
        const float* k = rows + key * block.k_stride;
        Lanes total[Rows][Keys] = {};
        const auto add = [&](auto&& read, std::int64_t at) {
            Lanes q[Rows];
#pragma GCC unroll 4
            for (int r = 0; r < Rows; ++r) {
                q[r] = read(block.q + r * block.q_stride + at);
            }
#pragma GCC unroll 16
            for (int j = 0; j < Keys; ++j) {
                const Lanes one = in_register(read(k + j * block.k_stride + at));
#pragma GCC unroll 4
                for (int r = 0; r < Rows; ++r) {
                    total[r][j] += q[r] * one;
                }
            }
        };
        std::int64_t at = 0;
        for (; at + kWide <= block.depth; at += kWide) {
            add([](const float* x) { return load(x); }, at);
        }
        if (at < block.depth) {
            add([&](const float* x) { return load_part(x, block.depth - at, 0.0F); }, at);
        }
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
            for (int j = 0; j < Keys; ++j) {
                scores[r * kFewKeys + key + j] = across<Add, float>(total[r][j]) * block.scale;
            }
        }
    }

    // Computes the scores of all keys from `key` on: `Keys` at a time, then half as many, and so on.
    template <int Keys>
    void scores_of(const float* rows, std::int64_t key, std::int64_t keys) {
        for (; key + Keys <= keys; key += Keys) {
            score<Keys>(rows, key);
        }
        if constexpr (Keys > 1) {
            scores_of<Keys / 2>(rows, key, keys);
        }
    }

    // Applies the mask to the scores of a query. Scores of keys that it does not see, and scores behind the last key,
    // become -inf.
    void mask(int r, std::int64_t first, std::int64_t keys) {
        float* row = scores + r * kFewKeys;
        const std::int64_t at = r * block.mask_row + first * block.mask_key;
        if (block.added != nullptr) {
            for (std::int64_t key = 0; key < keys; ++key) {
                row[key] += block.added[at + key * block.mask_key];
            }
        } else if (block.visible != nullptr) {
            for (std::int64_t key = 0; key < keys; ++key) {
                row[key] = block.visible[at + key * block.mask_key] != 0 ? row[key] : block.hidden_score;
            }
        }
        const std::int64_t seen = block.causal_offset + r + 1 - first;
        std::int64_t key = seen < 0 ? 0 : seen < keys ? seen : keys;
        for (const std::int64_t end = (keys + kWide - 1) / kWide * kWide; key < end; ++key) {
            row[key] = kNone;
        }
    }

    // Replaces scores by exp(score - largest), and updates the running maximum and sum.
    void raise(int r, std::int64_t keys) {
        float* row = scores + r * kFewKeys;
        Lanes most = splat(largest[r]);
        for (std::int64_t key = 0; key < keys; key += kWide) {
            most = Largest::combine(most, load(row + key));
        }
        const float now = across<Largest, float>(most);
        // If all keys so far were hidden, the sum stays 0.
        const Lanes about = splat(now == kNone ? 0.0F : now);
        Lanes total{};
        for (std::int64_t key = 0; key < keys; key += kWide) {
            const Lanes raised = exp_of_negative<float>(load(row + key) - about);
            store(row + key, raised);
            total += raised;
        }
        correction[r] = exp_of_negative<float>(splat(largest[r]) - about)[0];
        sum[r] = sum[r] * correction[r] + across<Add, float>(total);
        largest[r] = now;
    }

    // y = y * correction + the weighted values at `rows`, for `Vectors` vectors from `column` on. With `begins`, y is
    // not initialised: it is overwritten.
    template <int Vectors, typename Read, typename Write>
    void add_values(const float* rows, std::int64_t keys, bool begins, std::int64_t column, Read&& read,
                    Write&& write) {
        Lanes total[Rows][Vectors] = {};
        if (!begins) {
#pragma GCC unroll 4
            for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
                for (int w = 0; w < Vectors; ++w) {
                    total[r][w] = read(block.y + r * block.y_stride + column + w * kWide) * correction[r];
                }
            }
        }
        const float* v = rows + column;
        for (std::int64_t key = 0; key < keys; ++key, v += block.v_stride) {
            Lanes weight[Rows];
#pragma GCC unroll 4
            for (int r = 0; r < Rows; ++r) {
                weight[r] = splat(scores[r * kFewKeys + key]);
            }
#pragma GCC unroll 16
            for (int w = 0; w < Vectors; ++w) {
                const Lanes value = in_register(read(v + w * kWide));
#pragma GCC unroll 4
                for (int r = 0; r < Rows; ++r) {
                    total[r][w] += weight[r] * value;
                }
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
            for (int w = 0; w < Vectors; ++w) {
                write(block.y + r * block.y_stride + column + w * kWide, total[r][w]);
            }
        }
    }

    // Adds whole vectors of the values from `column` on: `Vectors` at a time, then half as many, and so on.
    template <int Vectors>
    void whole_values(const float* rows, std::int64_t keys, bool begins, std::int64_t& column) {
        for (; column + Vectors * kWide <= block.value_depth; column += Vectors * kWide) {
            add_values<Vectors>(
                rows, keys, begins, column, [](const float* x) { return load(x); },
                [](float* to, Lanes x) { store(to, x); });
        }
        if constexpr (Vectors > 1) {
            whole_values<Vectors / 2>(rows, keys, begins, column);
        }
    }

    void values(const float* rows, std::int64_t keys, bool begins) {
        std::int64_t column = 0;
        whole_values<kBeside>(rows, keys, begins, column);
        if (const std::int64_t rest = block.value_depth - column; rest > 0) {
            add_values<1>(
                rows, keys, begins, column, [&](const float* x) { return load_part(x, rest, 0.0F); },
                [&](float* to, Lanes x) { store_part(to, x, rest); });
        }
    }

    // Processes the keys and values [first, end), which begin at k and v. The queries see those before `seen`.
    void part(std::int64_t first, std::int64_t end, std::int64_t seen, const float* k, const float* v) {
        std::int64_t count = 0;
        for (; first < end; first += count, k += count * block.k_stride, v += count * block.v_stride) {
            count = end - first < kFewKeys ? end - first : kFewKeys;
            const std::int64_t keys = seen - first < count ? seen - first : count;
            if (keys > 0) {
                scores_of<kBeside>(k, 0, keys);
                for (int r = 0; r < Rows; ++r) {
                    mask(r, first, keys);
                    raise(r, keys);
                }
                values(v, keys, first == 0);
            } else if (block.kept_k == nullptr && block.kept_v == nullptr) {
                return;
            }
            if (block.kept_k != nullptr) {
                block.copy(block.kept_k + first * block.k_stride, k, count * block.k_stride);
            }
            if (block.kept_v != nullptr) {
                block.copy(block.kept_v + first * block.v_stride, v, count * block.v_stride);
            }
        }
    }

    void run() {
        const std::int64_t last = block.causal_offset + Rows;  // keys that the last row sees
        const std::int64_t keys = last < 0 ? 0 : last < block.keys ? last : block.keys;
        part(0, block.past, keys, block.past_k, block.past_v);
        part(block.past, block.keys, keys, block.k, block.v);
        for (int r = 0; r < Rows; ++r) {
            float* y = block.y + r * block.y_stride;
            const float factor = block.keys == 0 ? 0.0F : 1.0F / sum[r];
            if (block.largest != nullptr) {
                block.largest[r] = largest[r];
            }
            if (block.total != nullptr) {
                block.total[r] = sum[r];
            }
            for (std::int64_t i = 0; i < block.value_depth; ++i) {
                // A row that sees none of the keys is 0 / 0 = NaN; without any keys it is 0.
                y[i] = (keys == 0 ? 0.0F : y[i]) * factor;
            }
        }
    }
};

// For up to kFewQueries rows; memory: kFewQueries * kFewKeys floats.
inline void attend_few(const AttentionBlock& block, float* memory) {
    switch (block.rows) {
        case 1:
            return FewQueries<1>(block, memory).run();
        case 2:
            return FewQueries<2>(block, memory).run();
        case 3:
            return FewQueries<3>(block, memory).run();
        default:
            return FewQueries<kFewQueries>(block, memory).run();
    }
}

}  // namespace
}  // namespace graphkit
