// Matrix products in ONNX's (numpy's) sense, float32.
#pragma once

#include "onednn.h"

namespace graphkit {

struct MatMulOptions {
    bool transpose_a = false;  // swap the last two dimensions of an operand; no effect on vectors
    bool transpose_b = false;
    std::optional<Dims> bias;  // shape of a third input, added after scaling; broadcasts to the result
    float alpha = 1;           // result = alpha * a b + beta * bias, then post_ops
    float beta = 1;
    std::vector<PostOp> post_ops;
    bool pack_b = false;  // b is constant: let oneDNN choose its layout
};

// y = a b over the last two dimensions, broadcast over the others; a vector a is a row, a vector b a column, and the
// dimension added is dropped from y. Throws NativeError when the shapes do not fit; Unsupported for a bias that varies
// over batch dimensions.
class MatMul final : public Step {
  public:
    MatMul(Dims a, Dims b, const MatMulOptions& options, int threads);

    int packable() const override { return operation_.packable(); }
    std::unique_ptr<Packed> pack(const void* array) const override;
    std::string implementation() const override { return empty_ ? "empty" : operation_.implementation(); }

  protected:
    void execute(Team& team, std::span<const void* const> inputs, std::span<void* const> outputs,
                 const Packed* packed) override;

  private:
    void spread_bias(const float* bias, float* y) const;

    Operation operation_;
    bool empty_ = false;        // the result has no elements
    std::vector<float> zeros_;  // stands for a and b when they have no elements but the result has
    bool prefill_ = false;      // the bias is written into y first and the product added to it
    std::int64_t rows_ = 0;     // of the bias as a matrix: its broadcast extent and steps
    std::int64_t columns_ = 0;
    std::int64_t row_step_ = 0;
    std::int64_t column_step_ = 0;
};

}  // namespace graphkit
