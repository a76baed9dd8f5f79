// Softmax and its logarithm along any axis of float arrays.
#pragma once

#include <memory>

#include "runtime/kernel.h"

namespace graphkit {

// y = exp(x) / sum(exp(x)) along an axis, or its logarithm. y may share the memory of x. One thread computes a whole
// row.
class Softmax : public Kernel {
  public:
    Softmax(const Dims& shape, std::int64_t axis, const std::string& type, bool log, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<std::pair<int, int>> inplace() const override { return {{0, 0}}; }

  private:
    template <typename T>
    void run_rows(const T* x, T* y, std::byte* scratch) const;
    template <typename T>
    void run_columns(const T* x, T* y, std::byte* scratch) const;

    bool log_;
    ElementType type_;
    // x as [outer, size, inner].
    std::int64_t outer_ = 1;
    std::int64_t size_ = 1;
    std::int64_t inner_ = 1;
    std::int64_t tile_ = 1;  // columns that are computed together if inner > 1
};

}  // namespace graphkit
