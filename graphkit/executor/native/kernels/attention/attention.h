// Scaled dot-product attention, fused: scores never leave the near caches.
#pragma once

#include <optional>

#include "kernels/attention/attention_table.h"
#include "runtime/kernel.h"

namespace graphkit {

// y = softmax(scale * q @ k^T + mask) @ v for each head, in float32.
//
// q: [N, H, L, D], k: [N, H, S, D], v: [N, H, S, Dv] -> [N, H, L, Dv]; with heads_last they are [N, L, H, D] and so on,
// with output_heads_last y is. The mask broadcasts to [N, H, L, S]: floats are added, where a boolean one is false the
// score is `hidden_score`. Causal: query i sees no key behind i + S - L. Rows that see nothing are NaN.
class Attention : public Kernel {
  public:
    Attention(const Dims& q, const Dims& k, const Dims& v, const std::optional<Dims>& mask, bool boolean_mask,
              double scale, double hidden_score, bool causal, bool heads_last, bool output_heads_last, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    // Where the rows of a head lie.
    struct Rows {
        std::int64_t batch, head, row;
        std::int64_t offset(std::int64_t n, std::int64_t h) const { return n * batch + h * head; }
    };
    static Rows rows_of(std::int64_t heads, std::int64_t rows, std::int64_t columns, bool heads_last);

    const AttentionTable& table_;
    std::int64_t batch_, heads_;
    Rows q_{}, k_{}, v_{}, y_{};
    std::int64_t mask_strides_[4] = {};
    bool masked_, boolean_mask_;
    AttentionBlock block_{};  // what all blocks share
    std::int64_t queries_;    // rows of q
};

}  // namespace graphkit
