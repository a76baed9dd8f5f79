// Products and convolutions whose fused activation is also right for NaN and infinities.
//
// The library's minimum and maximum return the bound if an operand is NaN: after a product, its relu, clip and
// hard-sigmoid turn NaN into numbers, and its GELU turns infinity into NaN. Its code is fast, so it is used, but
// watched: each of these cases raises the processor's flag of invalid operations. If the flag is set after a run, the
// product is computed again, with graphkit's own epilogue. AMX tiles do not raise the flag. Where NaN or infinities
// would affect more than their own results, the input of tiles is checked before, and the safe variant is used from the
// start.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>

#include "onednn/onednn.h"

namespace graphkit {

class WatchedProduct : public Kernel {
  public:
    // Prepares the product with this epilogue. again: the variant that is right for NaN and infinities, with plain
    // weights; else constant weights may come packed.
    using Make = std::function<std::unique_ptr<LibraryKernel>(const Epilogue&, bool again)>;

    WatchedProduct(Make make, const Epilogue& epilogue);

    std::size_t scratch_bytes() const override { return product_->scratch_bytes(); }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<int> packed_inputs() const override { return product_->packed_inputs(); }
    std::size_t packed_bytes(int input) const override { return product_->packed_bytes(input); }
    std::string packed_layout(int input) const override { return product_->packed_layout(input); }
    void pack(int input, const void* plain, void* packed) const override { product_->pack(input, plain, packed); }
    std::vector<std::pair<int, int>> inplace() const override { return product_->inplace(); }
    std::string implementation() const override { return product_->implementation(); }

  private:
    struct Lazy {
        std::once_flag once;
        std::unique_ptr<LibraryKernel> kernel;
    };

    WatchedProduct(std::unique_ptr<LibraryKernel> product, Make make, const Epilogue& epilogue);
    void run_again(Applied applied, const void* const* inputs, void* const* outputs) const;

    Make make_;
    Epilogue epilogue_;
    std::unique_ptr<LibraryKernel> product_;
    bool watched_ = false;
    mutable std::array<Lazy, 2> again_;  // the `after` and `repair` variants, made when needed
};

// A separate type for each kind of product, since each is a class in Python.
template <typename Kind>
class Watched final : public WatchedProduct {
  public:
    using WatchedProduct::WatchedProduct;
};

}  // namespace graphkit
