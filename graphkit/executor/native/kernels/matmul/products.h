// The kernels of matrix products.
#pragma once

#include <memory>
#include <optional>

#include "kernels/pointwise/epilogue.h"
#include "runtime/kernel.h"

namespace graphkit {

// result = alpha * a b + beta * bias, then the activation and the residual of the epilogue.
struct ProductOptions {
    bool transpose_a = false;  // swap the last two dimensions of an operand; no effect on vectors
    bool transpose_b = false;
    std::optional<Dims> bias;  // shape of a third input
    double alpha = 1;
    double beta = 1;
    ElementType type = ElementType::f32;  // of all operands and the result
    Epilogue epilogue;
    bool pack_b = false;         // b is constant: it comes packed
    bool deterministic = false;  // equal bits for any number of threads
};

// By the library, in f32 or bf16.
std::unique_ptr<Kernel> library_product(const Dims& a, const Dims& b, const ProductOptions& options, int threads);

// By graphkit's own code, in f32, f64, or integers of at least 32 bits. It applies only the
// activation of the epilogue, to f32.
std::unique_ptr<Kernel> blocked_product(const Dims& a, const Dims& b, const ProductOptions& options, int threads);

// float32 products with a constant matrix b, [K, N], or [N, K] if `transposed`. `suits_packed`: whether a has too few
// rows to divide the product into pieces for the library, on this number of threads. `few_packed_rows`: up to how many
// rows this kernel is faster than the library's on any number of threads. The epilogue may have a bias.
bool suits_packed(const Dims& a, const Dims& b, bool transposed, int threads);
std::int64_t few_packed_rows(const Dims& b);
std::unique_ptr<Kernel> packed_product(const Dims& a, const Dims& b, bool transposed, const Epilogue& epilogue,
                                       int threads);

}  // namespace graphkit
