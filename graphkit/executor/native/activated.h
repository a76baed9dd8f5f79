// Products and convolutions with an activation behind them, which is right for NaN and infinities as well.
//
// The library's minimum and maximum make a bound of NaN: behind a product its relu, clip and hard-sigmoid turn NaN into
// numbers, and its GELU infinity into NaN. Its code stays, for it costs nothing, and is watched: each of these cases
// raises the processor's flag of invalid operations. Where that is up after a run, the activation is applied again by
// code of our own to the product alone.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "onednn.h"

namespace graphkit {

class Activated : public Kernel {
  public:
    // Prepares the product with this epilogue.
    using Make = std::function<std::unique_ptr<LibraryKernel>(const Epilogue&)>;

    Activated(Make make, const Epilogue& epilogue);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<int> packed_inputs() const override { return product_->packed_inputs(); }
    std::size_t packed_bytes(int input) const override { return product_->packed_bytes(input); }
    std::string packed_layout(int input) const override { return product_->packed_layout(input); }
    void pack(int input, const void* plain, void* packed) const override { product_->pack(input, plain, packed); }
    std::vector<std::pair<int, int>> inplace() const override;
    std::string implementation() const override { return product_->implementation(); }

  private:
    enum class Way {
        library,  // nothing can go wrong
        watched,  // the library's activation, checked after each run
        after,    // our own activation behind the product
    };

    Activated(std::unique_ptr<LibraryKernel> product, Make make, const Epilogue& epilogue);
    Way way_for(const LibraryKernel& product) const;
    // Whether our own code adds the residual as well.
    bool sums_itself() const;
    void run_watched(const void* const* inputs, void* const* outputs, std::byte* scratch) const;
    void run_plain(const void* const* inputs, void* product) const;
    const LibraryKernel& plain() const;
    std::int64_t size() const { return count(outputs_[0].shape); }
    std::size_t bytes() const { return static_cast<std::size_t>(size()) * size_of(outputs_[0].type); }

    Make make_;
    Epilogue epilogue_;
    std::unique_ptr<LibraryKernel> product_;
    Way way_ = Way::library;
    mutable std::once_flag once_;
    mutable std::unique_ptr<LibraryKernel> plain_;  // without activation and residual: made when it is needed
};

// The elements of y = activation(x + residual) or, with `residual_last`, activation(x) + residual; `residual` may be
// null, and both may be y. Arrays of float32 or bfloat16.
void activate(const Epilogue& epilogue, ElementType type, const void* x, const void* residual, void* y,
              std::int64_t size, int threads);

}  // namespace graphkit
