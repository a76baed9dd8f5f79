// What happens to a product before it is stored, in steps of its own: where the library has no implementation that does
// it on the way, or none that does it right.
#pragma once

#include <optional>
#include <vector>

#include "onednn.h"

namespace graphkit {

// y = activation(alpha * product + bias + sum * y), or with `sum_last` y = activation(alpha * product + bias) + sum * y.
struct Finish {
    float alpha = 1;
    bool bias = false;
    float sum = 0;  // of what the result holds when the run starts; 0: nothing
    bool sum_last = false;
    std::optional<Activation> activation;

    Finish() = default;
    // The same as `append` of the epilogue.
    Finish(bool bias, const Epilogue& epilogue);

    bool empty() const { return alpha == 1 && !bias && sum == 0 && !activation; }
    // The same as operations of a product on its way. The bias is an operand of the product itself.
    dnnl::post_ops chain() const;
};

// The steps of a Finish on a whole result that lies row-major as [outer, channels, inner]; the bias is [channels].
class Finishing {
  public:
    Finishing(const Finish& finish, const Dims& shape, ElementType type);

    // The product lies in float32 beside the result, else where the result will be.
    bool apart() const { return apart_; }
    std::size_t product_bytes() const { return apart_ ? aligned(elements_ * sizeof(float)) : 0; }
    std::size_t scratch_bytes() const { return scratch_bytes_; }
    void run(void* product, const void* bias, void* y, std::byte* scratch) const;

  private:
    enum Place { kProduct, kBias, kResult, kPlaces };

    void add_eltwise(Place at, dnnl::algorithm kind, float alpha, float beta);
    void add_sum(Place a, Place b, Place to);
    void add(Operation operation);
    dnnl::memory::desc layout(Place place) const;

    Dims shape_;
    ElementType type_;
    bool apart_;
    std::size_t elements_;
    std::size_t scratch_bytes_ = 0;
    std::vector<Operation> steps_;
};

}  // namespace graphkit
