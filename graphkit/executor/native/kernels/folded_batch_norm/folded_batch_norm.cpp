// FoldedBatchNorm: computes weights and a bias of a product that includes a batch normalisation.
#include <cmath>

#include "primitives/elements.h"
#include "runtime/kernel.h"
#include "runtime/operator_kernels.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

class FoldedBatchNorm final : public Kernel {
  public:
    FoldedBatchNorm(const Dims& weights, std::int64_t axis, double epsilon, bool has_bias, ElementType type,
                    int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    template <typename T>
    void compute(const void* const* inputs, void* const* outputs) const;

    AroundAxis around_;
    double epsilon_;
};

FoldedBatchNorm::FoldedBatchNorm(const Dims& weights, std::int64_t axis, double epsilon, bool has_bias,
                                 ElementType type, int threads)
    : Kernel("FoldedBatchNorm", threads), around_(weights, axis), epsilon_(epsilon) {
    const Dims channels = {around_.size};
    inputs_ = {{"weights", weights, type}, {"scale", channels, type}, {"shift", channels, type},
               {"mean", channels, type},   {"var", channels, type},   {"bias", channels, type, !has_bias}};
    outputs_ = {{"new_weights", weights, type, true}, {"new_bias", channels, type, true}};
}

template <typename T>
void FoldedBatchNorm::compute(const void* const* inputs, void* const* outputs) const {
    const auto operand = [&](int i) { return static_cast<const T*>(inputs[i]); };
    const T *weights = operand(0), *scale = operand(1), *shift = operand(2), *mean = operand(3), *var = operand(4);
    const T* bias = operand(5);
    auto* new_weights = static_cast<T*>(outputs[0]);
    auto* new_bias = static_cast<T*>(outputs[1]);
    const auto factor_of = [&](std::int64_t c) { return scale[c] / std::sqrt(var[c] + static_cast<T>(epsilon_)); };
    if (new_bias != nullptr) {
        for (std::int64_t c = 0; c < around_.size; ++c) {
            const T centred = bias == nullptr ? mean[c] : mean[c] - bias[c];
            new_bias[c] = shift[c] - centred * factor_of(c);
        }
    }
    if (new_weights == nullptr) {
        return;
    }
    const double cost = 0.5 * static_cast<double>(around_.inner);
    parallel_for(threads(), around_.outer * around_.size, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            const T factor = factor_of(row % around_.size);
            for (std::int64_t i = row * around_.inner; i < (row + 1) * around_.inner; ++i) {
                new_weights[i] = weights[i] * factor;
            }
        }
    });
}

void FoldedBatchNorm::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    inputs_[0].type == ElementType::f64 ? compute<double>(inputs, outputs) : compute<float>(inputs, outputs);
}

}  // namespace

GRAPHKIT_KERNEL("ai.graphkit", FoldedBatchNorm) {
    const TensorSpec& weights = node.input(0).tensor;
    const bool has_bias = node.has_input(5);
    return std::make_unique<FoldedBatchNorm>(weights.shape, node.integer("axis"), node.real("epsilon"), has_bias,
                                             weights.type, node.threads);
}

}  // namespace graphkit
