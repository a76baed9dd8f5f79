// Matrix products in ONNX's (numpy's) sense.
#pragma once

#include "onednn/product.h"

namespace graphkit {

struct MatMulOptions {
    bool transpose_a = false;  // swap the last two dimensions of an operand; no effect on vectors
    bool transpose_b = false;
    std::optional<Dims> bias;  // shape of a third input, added after scaling; broadcasts to the result
    float alpha = 1;           // result = alpha * a b + beta * bias, then the epilogue's activation and residual
    float beta = 1;
    ElementType type = ElementType::f32;  // of all operands and the result: f32 or bf16
    Epilogue epilogue;         // its residual is the last input, of the result's shape
    bool pack_b = false;  // b is constant: it comes in oneDNN's layout, where there is one for all pieces
    bool deterministic = false;  // the same bits for any number of threads
};

// y = a b over the last two dimensions, broadcast over the others; a vector a is a row, a vector b a column, and the
// dimension added is dropped from y. Throws NativeError when the shapes do not fit; Unsupported for a bias that varies
// over batch dimensions.
class MatMul final : public LibraryKernel {
  public:
    MatMul(Dims a, Dims b, const MatMulOptions& options, int threads);

    std::vector<std::pair<int, int>> inplace() const override { return residual_inplace(); }
    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    // With the epilogue fused, else in a pass of its own.
    void as_product(const Matrices& a, const Matrices& b, const Matrices& y, const MatMulOptions& options,
                    const Epilogue& epilogue, bool fused);
    void spread_bias(const float* bias, float* y) const;

    std::size_t zeros_ = 0;  // elements that stand for a and b when they have none but the result has
    bool prefill_ = false;   // the bias is written into y first and the product added to it
    std::int64_t rows_ = 0;  // of the bias as a matrix: its broadcast extent and steps
    std::int64_t columns_ = 0;
    std::int64_t row_step_ = 0;
    std::int64_t column_step_ = 0;
};

}  // namespace graphkit
