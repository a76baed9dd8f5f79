// Scaled dot-product attention, fused: scores are kept in the first- and second-level cache only.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "kernels/attention/attention_layout.h"
#include "kernels/attention/attention_table.h"
#include "primitives/elements.h"
#include "primitives/pieces.h"
#include "runtime/bindings.h"
#include "runtime/kernel.h"
#include "runtime/operator_kernels.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// y = softmax(scale * q @ k^T + mask) @ v for each head, in float32.
//
// q: [N, H, L, D], k: [N, G, S, D], v: [N, G, S, Dv] -> [N, H, L, Dv]. Groups of H / G consecutive heads of q share one
// head of k and v. With heads_last, q, k and v are [N, L, H, D] and so on; with output_heads_last, y is. The mask
// broadcasts to [N, H, L, S]. A float mask is added to the scores; where a boolean mask is false, the score is
// `hidden_score`. Causal: query i sees the keys up to i + S - L. Rows of queries that see no key are NaN.
//
// With a past of P rows, [N, G, P, D] and [N, G, P, Dv], the keys and values are those of the past followed by k and v.
// Both concatenations are further results. The mask covers all keys, and follows the past in the inputs. Unused results
// may be absent. If keys or values are absent, pass false for `keys_returned` or `values_returned`.
//
// With statistics, further results, [N, H, L], are the largest score of each row and its sum of exp(score - largest).
class Attention : public Kernel {
  public:
    Attention(const Dims& q, const Dims& k, const Dims& v, const AttentionOptions& options,
              const std::optional<std::int64_t>& past, bool keys_returned, bool values_returned, bool statistics,
              int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    // Whether each block copies the keys and values that it reads.
    bool keeps_in_blocks() const {
        return sharing_ == 1 && queries_ > 0 && queries_ <= table_.few && block_.value_depth > 0;
    }
    std::size_t blocks_bytes() const;
    std::size_t joined_bytes(std::int64_t columns) const;
    void set_results(const Dims& k, const Dims& v, std::int64_t keys, bool output_heads_last);
    void put_sharers_together();
    void join(const float* past, const float* behind, float* whole, std::int64_t columns) const;

    // The memory of one run. keys, values: where past and new ones are concatenated, null if not used. copy: how blocks
    // copy them, null if they are concatenated before.
    struct Operands {
        const float* q;
        const float* k;
        const float* v;
        const void* mask;
        float* y;
        const float* past_k;
        const float* past_v;
        float* keys;
        float* values;
        float* largest;
        float* total;
        void (*copy)(float* to, const float* from, std::int64_t floats);
    };
    Operands given(const void* const* inputs, void* const* outputs, std::byte* scratch) const;
    AttentionBlock block_at(const Operands& given, std::int64_t n, std::int64_t h, std::int64_t row) const;

    const AttentionTable& table_;
    std::int64_t batch_, heads_;
    std::int64_t sharing_;  // heads of q that share one head of k and v
    HeadRows q_{}, k_{}, v_{}, y_{};
    std::array<std::int64_t, 4> mask_strides_{};
    bool masked_, boolean_mask_;
    AttentionBlock block_{};  // what all blocks share
    std::int64_t queries_;    // rows of q
    std::optional<std::int64_t> past_;
    bool keys_returned_, values_returned_, statistics_;
    std::int64_t groups_ = 0;
};

// Estimated nanoseconds of one multiply-add.
constexpr double kProductNanoseconds = 0.02;

void copy_floats(float* to, const float* from, std::int64_t floats) {
    copy_bytes(reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from),
               static_cast<std::size_t>(floats) * sizeof(float));
}

void stream_floats(float* to, const float* from, std::int64_t floats) {
    stream_bytes(reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from),
                 floats * static_cast<std::int64_t>(sizeof(float)));
}

Dims with_rows(Dims whole, std::int64_t rows) {
    if (whole.size() == 4) {
        whole[2] = rows;
    }
    return whole;
}

}  // namespace

Attention::Attention(const Dims& q, const Dims& k, const Dims& v, const AttentionOptions& options,
                     const std::optional<std::int64_t>& past, bool keys_returned, bool values_returned, bool statistics,
                     int threads)
    : Kernel("Attention", threads),
      table_(attention_table()),
      masked_(options.mask.has_value()),
      boolean_mask_(options.boolean_mask),
      past_(past),
      keys_returned_(keys_returned),
      values_returned_(values_returned),
      statistics_(statistics) {
    inputs_ = {{"q", q}, {"k", k}, {"v", v}};
    if (past) {
        inputs_.push_back({"past_k", with_rows(k, *past)});
        inputs_.push_back({"past_v", with_rows(v, *past)});
    }
    if (options.mask) {
        inputs_.push_back({"mask", *options.mask, boolean_mask_ ? ElementType::boolean : ElementType::f32});
    }
    const auto fail = [&](const std::string& what) { throw NativeError(describe() + ": " + what); };
    if (q.size() != 4 || k.size() != 4 || v.size() != 4) {
        fail("query, key and value must have four axes");
    }
    const std::size_t head_axis = options.heads_last ? 2 : 1;
    const std::size_t row_axis = options.heads_last ? 1 : 2;
    batch_ = q[0];
    heads_ = q[head_axis];
    queries_ = q[row_axis];
    if (past && (options.heads_last || *past < 0)) {
        fail("with past keys, the layout must be [batch, heads, rows, size], and the number of past rows at least 0");
    }
    const std::int64_t keys = past.value_or(0) + k[row_axis];
    const std::int64_t groups = groups_ = k[head_axis];
    const bool shares = groups == heads_ || (groups > 0 && heads_ % groups == 0);
    if (k[0] != batch_ || v[0] != batch_ || !shares || v[head_axis] != groups || v[row_axis] != k[row_axis] ||
        k[3] != q[3]) {
        fail("the shapes of query, key and value do not fit together");
    }
    sharing_ = groups == heads_ ? 1 : heads_ / groups;
    set_results(k, v, keys, options.output_heads_last);
    q_ = head_rows(heads_, queries_, q[3], options.heads_last);
    k_ = head_rows(groups, keys, k[3], options.heads_last);
    v_ = head_rows(groups, keys, v[3], options.heads_last);
    y_ = head_rows(heads_, queries_, v[3], options.output_heads_last);
    if (options.mask) {
        mask_strides_ = mask_strides(*options.mask, {batch_, heads_, queries_, keys}, *this);
    }
    block_.causal_offset = options.causal ? keys - queries_ : keys;
    if (queries_ == 1 && sharing_ > 1) {
        put_sharers_together();
        block_.causal_offset = keys;  // the only query of a head sees all keys
    }
    block_.keys = keys;
    block_.depth = q[3];
    block_.value_depth = v[3];
    block_.q_stride = q_.row;
    block_.k_stride = k_.row;
    block_.v_stride = v_.row;
    block_.y_stride = y_.row;
    block_.scale = static_cast<float>(options.scale);
    block_.hidden_score = static_cast<float>(options.hidden_score);
    block_.mask_row = mask_strides_[2];
    block_.mask_key = mask_strides_[3];
}

// `keys`: number of all keys, past and new.
void Attention::set_results(const Dims& k, const Dims& v, std::int64_t keys, bool output_heads_last) {
    const Dims y = output_heads_last ? Dims{batch_, queries_, heads_, v[3]} : Dims{batch_, heads_, queries_, v[3]};
    outputs_ = {{"y", y, ElementType::f32, past_.has_value() || statistics_}};
    if (past_) {
        outputs_.push_back({"keys", with_rows(k, keys), ElementType::f32, !keys_returned_});
        outputs_.push_back({"values", with_rows(v, keys), ElementType::f32, !values_returned_});
    }
    if (statistics_) {
        if (past_ || sharing_ > 1) {
            throw NativeError(describe() +
                              ": statistics are returned if each head has its own keys, and without past keys");
        }
        outputs_.push_back({"largest", {batch_, heads_, queries_}, ElementType::f32, true});
        outputs_.push_back({"total", {batch_, heads_, queries_}, ElementType::f32, true});
    }
}

// Treats the heads that share keys as the rows of one head, so that a block reads the keys once.
void Attention::put_sharers_together() {
    for (HeadRows* rows : {&q_, &y_}) {
        *rows = {rows->batch, sharing_ * rows->head, rows->head};
    }
    mask_strides_[2] = mask_strides_[1];
    mask_strides_[1] *= sharing_;
    heads_ = groups_;
    queries_ = std::exchange(sharing_, 1);
}

std::size_t Attention::blocks_bytes() const {
    const std::int64_t floats = table_.memory(block_.depth, block_.value_depth);
    return static_cast<std::size_t>(std::max(threads(), 1)) * static_cast<std::size_t>(floats) * sizeof(float);
}

std::size_t Attention::joined_bytes(std::int64_t columns) const {
    return aligned(static_cast<std::size_t>(batch_ * groups_ * block_.keys * columns) * sizeof(float));
}

std::size_t Attention::scratch_bytes() const {
    std::size_t bytes = blocks_bytes();
    if (past_ && !keeps_in_blocks()) {
        bytes = aligned(bytes) + (keys_returned_ ? 0 : joined_bytes(block_.depth)) +
                (values_returned_ ? 0 : joined_bytes(block_.value_depth));
    }
    return bytes;
}

// Concatenates a past and the new rows behind it, for each head.
void Attention::join(const float* past, const float* behind, float* whole, std::int64_t columns) const {
    if (whole == nullptr) {
        return;
    }
    const auto row = columns * static_cast<std::int64_t>(sizeof(float));
    const std::byte* parts[] = {reinterpret_cast<const std::byte*>(past), reinterpret_cast<const std::byte*>(behind)};
    for_parts(threads(), {batch_ * groups_, {*past_ * row, block_.keys * row}},
              [&](std::size_t part, std::int64_t from, std::int64_t to, std::int64_t bytes, bool stream) {
                  copy_piece(reinterpret_cast<std::byte*>(whole) + to, parts[part] + from, bytes, stream);
              });
}

Attention::Operands Attention::given(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const auto floats = [&](int position) { return static_cast<const float*>(inputs[position]); };
    Operands found{};
    found.q = floats(0);
    found.k = floats(1);
    found.v = floats(2);
    found.mask = masked_ ? inputs[past_ ? 5 : 3] : nullptr;
    found.y = static_cast<float*>(outputs[0]);
    if (statistics_) {
        found.largest = static_cast<float*>(outputs[1]);
        found.total = static_cast<float*>(outputs[2]);
    }
    if (!past_) {
        return found;
    }
    found.past_k = floats(3);
    found.past_v = floats(4);
    found.keys = static_cast<float*>(outputs[1]);
    found.values = static_cast<float*>(outputs[2]);
    if (keeps_in_blocks() && found.y != nullptr) {
        const std::int64_t kept = batch_ * groups_ * block_.keys * (block_.depth + block_.value_depth);
        const bool streams = kept * static_cast<std::int64_t>(sizeof(float)) >= kStreamBytes;
        found.copy = streams ? stream_floats : copy_floats;
        return found;
    }
    std::byte* free = scratch + aligned(blocks_bytes());
    if (!keys_returned_ && found.y != nullptr) {
        found.keys = reinterpret_cast<float*>(free);
        free += joined_bytes(block_.depth);
    }
    if (!values_returned_ && found.y != nullptr) {
        found.values = reinterpret_cast<float*>(free);
    }
    join(found.past_k, found.k, found.keys, block_.depth);
    join(found.past_v, found.v, found.values, block_.value_depth);
    found.k = found.keys;
    found.v = found.values;
    return found;
}

// Returns the block of rows of a head that begins at `row`.
AttentionBlock Attention::block_at(const Operands& given, std::int64_t n, std::int64_t h, std::int64_t row) const {
    AttentionBlock block = block_;
    block.q = given.q + q_.offset(n, h) + row * q_.row;
    block.k = given.k + k_.offset(n, h / sharing_);
    block.v = given.v + v_.offset(n, h / sharing_);
    if (given.copy != nullptr) {
        const std::int64_t head = n * groups_ + h;
        const std::int64_t rest = block.keys - *past_;
        block.past = *past_;
        block.past_k = given.past_k + head * block.past * block.depth;
        block.past_v = given.past_v + head * block.past * block.value_depth;
        block.k = given.k + head * rest * block.depth;
        block.v = given.v + head * rest * block.value_depth;
        block.kept_k = given.keys == nullptr ? nullptr : given.keys + head * block.keys * block.depth;
        block.kept_v = given.values == nullptr ? nullptr : given.values + head * block.keys * block.value_depth;
        block.copy = given.copy;
    }
    block.y = given.y == nullptr ? nullptr : given.y + y_.offset(n, h) + row * y_.row;
    block.rows = std::min(table_.queries, queries_ - row);
    const std::int64_t at = (n * heads_ + h) * queries_ + row;
    block.largest = given.largest == nullptr ? nullptr : given.largest + at;
    block.total = given.total == nullptr ? nullptr : given.total + at;
    block.causal_offset += block_.causal_offset < block_.keys ? row : 0;
    if (masked_) {
        const std::int64_t first = n * mask_strides_[0] + h * mask_strides_[1] + row * mask_strides_[2];
        if (boolean_mask_) {
            block.visible = static_cast<const std::uint8_t*>(given.mask) + first;
        } else {
            block.added = static_cast<const float*>(given.mask) + first;
        }
    }
    return block;
}

void Attention::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const Operands operands = given(inputs, outputs, scratch);
    if (!statistics_ && (operands.y == nullptr || block_.value_depth == 0)) {
        return;
    }
    const std::int64_t blocks = (queries_ + table_.queries - 1) / table_.queries;
    // With few queries, reading keys and values takes longer than the arithmetic.
    const auto elements = static_cast<double>(block_.keys * (block_.depth + block_.value_depth));
    const auto rows = static_cast<double>(std::min(queries_, table_.queries));
    const double cost = 100 + elements * std::max(kProductNanoseconds * rows, sizeof(float) / kBytesPerNanosecond);
    parallel_for(threads(), batch_ * heads_ * blocks, cost, [&](std::int64_t begin, std::int64_t end) {
        auto* memory =
            reinterpret_cast<float*>(scratch) + thread_number() * table_.memory(block_.depth, block_.value_depth);
        for (std::int64_t item = begin; item < end; ++item) {
            const std::int64_t head = item / blocks;
            // The last rows come first: causal ones have the most keys. With the short tasks at the end, threads finish
            // at nearly the same time.
            const std::int64_t row = (blocks - 1 - item % blocks) * table_.queries;
            table_.run(block_at(operands, head / heads_, head % heads_, row), memory);
        }
        if (operands.copy == stream_floats) {
            end_stream();
        }
    });
}

// past: the number of cached rows, which come before k and v.
static std::unique_ptr<Kernel> attention_of(const NodeSpec& node, std::size_t mask_at,
                                            const std::optional<std::int64_t>& past, bool statistics) {
    if (node.outputs[0].type != ElementType::f32) {
        return nullptr;
    }
    const auto shape = [&](std::size_t position) -> const Dims& { return node.input(position).tensor.shape; };
    return std::make_unique<Attention>(shape(0), shape(1), shape(2), attention_options(node, mask_at), past,
                                       node.is_used(1), node.is_used(2), statistics, node.threads);
}

GRAPHKIT_KERNEL_READING("ai.graphkit", FusedAttention) {
    return attention_of(node, 3, std::nullopt, false);
}

GRAPHKIT_KERNEL_READING("ai.graphkit", FusedAttentionWithStatistics) {
    return attention_of(node, 3, std::nullopt, true);
}

GRAPHKIT_KERNEL_READING("ai.graphkit", CachedAttention) {
    return attention_of(node, 5, node.input(3).tensor.shape.at(2), false);
}

GRAPHKIT_BINDINGS(attention) {
    nb::class_<Attention, Kernel>(m, "Attention")
        .def(
            "__init__",
            [](Attention* self, const Dims& q, const Dims& k, const Dims& v, const std::optional<Dims>& mask,
               bool boolean_mask, double scale, double hidden_score, bool causal, bool heads_last,
               bool output_heads_last, const std::optional<std::int64_t>& past, bool keys_returned,
               bool values_returned, bool statistics, int threads) {
                const AttentionOptions options{mask,       boolean_mask,     scale, hidden_score, causal,
                                               heads_last, output_heads_last};
                new (self) Attention(q, k, v, options, past, keys_returned, values_returned, statistics, threads);
            },
            "q"_a, "k"_a, "v"_a, "mask"_a.none() = nb::none(), "boolean_mask"_a = false, "scale"_a = 1.0,
            "hidden_score"_a = 0.0, "causal"_a = false, "heads_last"_a = false, "output_heads_last"_a = false,
            "past"_a = nb::none(), "keys_returned"_a = true, "values_returned"_a = true, "statistics"_a = false,
            "threads"_a = 0);
}

}  // namespace graphkit
