// Products and convolutions whose fused activation is right for NaN and infinities as well.
//
// The library's minimum and maximum make a bound of NaN: behind a product its relu, clip and hard-sigmoid turn NaN into
// numbers, and its GELU infinity into NaN. Its code stays, for it costs nothing, and is watched: each of these cases
// raises the processor's flag of invalid operations. Where that is up after a run, the product is computed again, with
// graphkit's own epilogue behind it. Tiles (AMX) raise no flag: what they multiply is looked at before, where what is
// not finite would spoil more than its own results, and then computed so from the start.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>

#include "onednn/onednn.h"

namespace graphkit {

class WatchedProduct : public Kernel {
  public:
    // Prepares the product with this epilogue. again: for numbers of all kinds, with plain weights; else constant ones
    // may come packed.
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
    mutable std::array<Lazy, 2> again_;  // `after` and `repair`, made when they are needed
};

// A type of its own for each kind of product, as classes in Python need.
template <typename Kind>
class Watched final : public WatchedProduct {
  public:
    using WatchedProduct::WatchedProduct;
};

}  // namespace graphkit
