// The gradient of scaled dot-product attention, fused: memory is linear in the number of positions, not quadratic.
#include <algorithm>
#include <array>
#include <optional>

#include "kernels/attention/attention_gradient_table.h"
#include "kernels/attention/attention_layout.h"
#include "primitives/elements.h"
#include "runtime/bindings.h"
#include "runtime/kernel.h"
#include "runtime/operator_kernels.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// The gradients of Attention with respect to q, k and v, in float32.
//
// q, k, v, the mask and the options are those of Attention; each head has its own keys. y [N, H, L, Dv] is the result
// of Attention, and largest, total [N, H, L] are its statistics. dy: like y -> dq, dk, dv: like q, k, v.
//
// The keys of a head are divided into parts. One thread computes the results of a part: dk and dv of its keys, and its
// term of dq. The number of parts depends on the shapes only, so the sums of dq do not depend on the number of threads.
class AttentionGradient : public Kernel {
  public:
    AttentionGradient(const Dims& q, const Dims& k, const Dims& v, const AttentionOptions& options, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    struct Operands {
        const float* q;
        const float* k;
        const float* v;
        const void* mask;
        const float* y;
        const float* largest;
        const float* total;
        const float* dy;
        float* dq;
        float* dk;
        float* dv;
        float* terms;  // terms of dq of all parts but the first
    };
    std::int64_t dq_floats() const { return batch_ * heads_ * queries_ * block_.depth; }
    std::size_t blocks_bytes() const;
    std::int64_t seen(const AttentionGradientBlock& block, std::int64_t row) const;
    void run_part(const Operands& given, std::int64_t part, std::int64_t head, float* memory) const;
    AttentionGradientBlock block_at(const Operands& given, std::int64_t n, std::int64_t h, std::int64_t row) const;
    void add_terms(const Operands& given) const;

    const AttentionGradientTable& table_;
    std::int64_t batch_ = 0, heads_ = 0, queries_ = 0, keys_ = 0;
    std::int64_t parts_ = 0, part_keys_ = 0;
    HeadRows q_{}, k_{}, v_{}, y_{};
    std::array<std::int64_t, 4> mask_strides_{};
    bool masked_, boolean_mask_, causal_;
    AttentionGradientBlock block_{};  // what all blocks share
};

// Estimated nanoseconds of one multiply-add.
constexpr double kProductNanoseconds = 0.02;
// Number of parts of all heads together, if each part has at least kPartKeys keys.
constexpr std::int64_t kParts = 16;
constexpr std::int64_t kPartKeys = 512;

float* moved(float* start, std::int64_t floats) {
    return start == nullptr ? nullptr : start + floats;
}

void clear_rows(float* rows, std::int64_t stride, std::int64_t count, std::int64_t columns) {
    for (std::int64_t row = 0; rows != nullptr && row < count; ++row) {
        std::fill_n(rows + row * stride, columns, 0.0F);
    }
}

}  // namespace

AttentionGradient::AttentionGradient(const Dims& q, const Dims& k, const Dims& v, const AttentionOptions& options,
                                     int threads)
    : Kernel("AttentionGradient", threads),
      table_(attention_gradient_table()),
      masked_(options.mask.has_value()),
      boolean_mask_(options.boolean_mask),
      causal_(options.causal) {
    const std::optional<Dims>& mask = options.mask;
    const ElementType mask_type = boolean_mask_ ? ElementType::boolean : ElementType::f32;
    inputs_ = {{"q", q}, {"k", k}, {"v", v}, {"mask", mask.value_or(Dims{}), mask_type, !mask}};
    const auto fail = [&](const std::string& what) { throw NativeError(describe() + ": " + what); };
    if (q.size() != 4 || k.size() != 4 || v.size() != 4) {
        fail("query, key and value must have four axes");
    }
    const std::size_t head_axis = options.heads_last ? 2 : 1;
    const std::size_t row_axis = options.heads_last ? 1 : 2;
    batch_ = q[0];
    heads_ = q[head_axis];
    queries_ = q[row_axis];
    keys_ = k[row_axis];
    if (k[0] != batch_ || v[0] != batch_ || k[head_axis] != heads_ || v[head_axis] != heads_ || v[row_axis] != keys_ ||
        k[3] != q[3]) {
        fail("the shapes of query, key and value do not fit together");
    }
    const Dims y =
        options.output_heads_last ? Dims{batch_, queries_, heads_, v[3]} : Dims{batch_, heads_, queries_, v[3]};
    const Dims statistics = {batch_, heads_, queries_};
    inputs_.insert(inputs_.end(), {{"y", y}, {"largest", statistics}, {"total", statistics}, {"dy", y}});
    outputs_ = {
        {"dq", q, ElementType::f32, true}, {"dk", k, ElementType::f32, true}, {"dv", v, ElementType::f32, true}};
    q_ = head_rows(heads_, queries_, q[3], options.heads_last);
    k_ = head_rows(heads_, keys_, k[3], options.heads_last);
    v_ = head_rows(heads_, keys_, v[3], options.heads_last);
    y_ = head_rows(heads_, queries_, v[3], options.output_heads_last);
    if (mask) {
        mask_strides_ = mask_strides(*mask, {batch_, heads_, queries_, keys_}, *this);
    }
    const std::int64_t wanted = kParts / std::max<std::int64_t>(batch_ * heads_, 1);
    parts_ = std::clamp<std::int64_t>(std::min(wanted, keys_ / kPartKeys), 1, kParts);
    part_keys_ = (keys_ + parts_ - 1) / parts_;
    block_.causal_offset = options.causal ? keys_ - queries_ : keys_;
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

std::size_t AttentionGradient::blocks_bytes() const {
    const std::int64_t floats = table_.memory(block_.depth, block_.value_depth);
    return aligned(static_cast<std::size_t>(std::max(threads(), 1)) * static_cast<std::size_t>(floats) * sizeof(float));
}

std::size_t AttentionGradient::scratch_bytes() const {
    return blocks_bytes() + static_cast<std::size_t>((parts_ - 1) * dq_floats()) * sizeof(float);
}

// Returns how many keys, from the first one on, the rows of a block read; the block begins at `row`.
std::int64_t AttentionGradient::seen(const AttentionGradientBlock& block, std::int64_t row) const {
    // A row that sees no key has NaN weights, which make the gradients of all values NaN. So does a NaN score.
    const bool sees = std::all_of(block.total, block.total + block.rows, [](float total) { return total > 0; });
    if (!causal_ || block_.causal_offset + row < 0 || !sees) {
        return keys_;
    }
    return std::min(keys_, block_.causal_offset + row + block.rows);
}

AttentionGradientBlock AttentionGradient::block_at(const Operands& given, std::int64_t n, std::int64_t h,
                                                   std::int64_t row) const {
    AttentionGradientBlock block = block_;
    block.q = given.q + q_.offset(n, h) + row * q_.row;
    block.k = given.k + k_.offset(n, h);
    block.v = given.v + v_.offset(n, h);
    block.y = given.y + y_.offset(n, h) + row * y_.row;
    block.dy = given.dy + y_.offset(n, h) + row * y_.row;
    block.largest = given.largest + (n * heads_ + h) * queries_ + row;
    block.total = given.total + (n * heads_ + h) * queries_ + row;
    block.dk = moved(given.dk, k_.offset(n, h));
    block.dv = moved(given.dv, v_.offset(n, h));
    block.rows = std::min(table_.queries, queries_ - row);
    block.causal_offset += causal_ ? row : 0;
    if (masked_) {
        const std::int64_t at = n * mask_strides_[0] + h * mask_strides_[1] + row * mask_strides_[2];
        if (boolean_mask_) {
            block.visible = static_cast<const std::uint8_t*>(given.mask) + at;
        } else {
            block.added = static_cast<const float*>(given.mask) + at;
        }
    }
    return block;
}

void AttentionGradient::run_part(const Operands& given, std::int64_t part, std::int64_t head, float* memory) const {
    const std::int64_t n = head / heads_;
    const std::int64_t h = head % heads_;
    const std::int64_t first = std::min(keys_, part * part_keys_);
    const std::int64_t last = std::min(keys_, first + part_keys_);
    clear_rows(moved(given.dk, k_.offset(n, h) + first * k_.row), k_.row, last - first, block_.depth);
    clear_rows(moved(given.dv, v_.offset(n, h) + first * v_.row), v_.row, last - first, block_.value_depth);
    float* dq = moved(given.dq, q_.offset(n, h));
    if (part > 0 && dq != nullptr) {
        dq = given.terms + (part - 1) * dq_floats() + head * queries_ * block_.depth;
    }
    const std::int64_t dq_stride = part == 0 ? q_.row : block_.depth;
    for (std::int64_t row = 0; row < queries_; row += table_.queries) {
        AttentionGradientBlock block = block_at(given, n, h, row);
        block.dq = moved(dq, row * dq_stride);
        block.dq_stride = dq_stride;
        block.first_key = first;
        block.last_key = std::min(last, seen(block, row));
        if (block.last_key > first) {
            table_.run(block, memory);
        } else {
            clear_rows(block.dq, dq_stride, block.rows, block_.depth);
        }
    }
}

// Adds the terms of all parts but the first one to dq.
void AttentionGradient::add_terms(const Operands& given) const {
    if (parts_ == 1 || given.dq == nullptr) {
        return;
    }
    const std::int64_t depth = block_.depth;
    const double cost = static_cast<double>(parts_ * depth) * sizeof(float) / kBytesPerNanosecond;
    parallel_for(threads(), batch_ * heads_ * queries_, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t item = begin; item < end; ++item) {
            const std::int64_t head = item / queries_;
            float* dq = given.dq + q_.offset(head / heads_, head % heads_) + item % queries_ * q_.row;
            for (std::int64_t part = 1; part < parts_; ++part) {
                const float* term = given.terms + (part - 1) * dq_floats() + item * depth;
                for (std::int64_t i = 0; i < depth; ++i) {
                    dq[i] += term[i];
                }
            }
        }
    });
}

void AttentionGradient::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const auto read = [&](int position) { return static_cast<const float*>(inputs[position]); };
    const auto written = [&](int position) { return static_cast<float*>(outputs[position]); };
    const Operands given{read(0),    read(1),    read(2),    inputs[3],
                         read(4),    read(5),    read(6),    read(7),
                         written(0), written(1), written(2), reinterpret_cast<float*>(scratch + blocks_bytes())};
    const std::int64_t heads = batch_ * heads_;
    // In causal attention, parts with later keys have less to do: the parts with the first keys come first.
    const double products = static_cast<double>(queries_ * part_keys_ * (3 * block_.depth + 2 * block_.value_depth));
    parallel_for(
        threads(), parts_ * heads, 100 + kProductNanoseconds * products, [&](std::int64_t begin, std::int64_t end) {
            float* memory =
                reinterpret_cast<float*>(scratch) + thread_number() * table_.memory(block_.depth, block_.value_depth);
            for (std::int64_t item = begin; item < end; ++item) {
                run_part(given, item / heads, item % heads, memory);
            }
        });
    add_terms(given);
}

GRAPHKIT_KERNEL_READING("ai.graphkit", FusedAttentionGrad) {
    if (node.outputs[0].type != ElementType::f32) {
        return nullptr;
    }
    const auto shape = [&](std::size_t position) -> const Dims& { return node.input(position).tensor.shape; };
    return std::make_unique<AttentionGradient>(shape(0), shape(1), shape(2), attention_options(node, 3), node.threads);
}

GRAPHKIT_BINDINGS(attention_gradient) {
    nb::class_<AttentionGradient, Kernel>(m, "AttentionGradient")
        .def(
            "__init__",
            [](AttentionGradient* self, const Dims& q, const Dims& k, const Dims& v, const std::optional<Dims>& mask,
               bool boolean_mask, double scale, double hidden_score, bool causal, bool heads_last,
               bool output_heads_last, int threads) {
                const AttentionOptions options{mask,       boolean_mask,     scale, hidden_score, causal,
                                               heads_last, output_heads_last};
                new (self) AttentionGradient(q, k, v, options, threads);
            },
            "q"_a, "k"_a, "v"_a, "mask"_a.none() = nb::none(), "boolean_mask"_a = false, "scale"_a = 1.0,
            "hidden_score"_a = 0.0, "causal"_a = false, "heads_last"_a = false, "output_heads_last"_a = false,
            "threads"_a = 0);
}

}  // namespace graphkit
