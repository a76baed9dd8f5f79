// Gradients of normalisations. dscale and dbias are sums over constant parts of the rows, or whole channels, so that
// results do not depend on the number of threads.
#pragma once

#include "kernels/norm/norm.h"

namespace graphkit {

// From dy, x and scale, and for LayerNormalization also the forward operator's mean and inverse standard deviation, of
// type `statistics`, which may be absent: dx, dscale and (LayerNormalization) dbias, both of scale's shape.
// Outputs that nobody reads may be absent.
class LayerNormGrad : public Kernel {
  public:
    LayerNormGrad(const Dims& x, std::int64_t axis, const Dims& scale, const std::string& type, double epsilon,
                  bool about_mean, const std::string& statistics, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    template <typename T>
    void run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const;
    template <typename T>
    void store_total(const Wide<T>* total, Wide<T>* folded, void* to) const;

    ElementType type_;
    ElementType statistics_;
    bool about_mean_;
    double epsilon_;
    std::int64_t rows_ = 1;
    std::int64_t size_ = 1;
    std::int64_t scale_size_ = 1;
    std::int64_t chunks_ = 1;
    std::vector<std::int64_t> scale_offsets_;  // empty where scale has one element for each of a row
};

// From dy, x and scale: dx, dscale and dbias of BatchNormalization in training.
class BatchNormGrad : public Kernel {
  public:
    BatchNormGrad(const Dims& x, const std::string& type, const std::string& scale_type, double epsilon, int threads);

    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    template <typename T>
    void run_as(const void* const* inputs, void* const* outputs, std::byte* scratch) const;

    ElementType type_, scale_type_;
    double epsilon_;
    ChannelGeometry geometry_;
};

}  // namespace graphkit
