// FiniteGuard: stops a run if a number is not finite.
#include <cmath>
#include <cstring>
#include <type_traits>

#include "primitives/elements.h"
#include "runtime/not_finite.h"
#include "runtime/operator_kernels.h"
#include "simd/half_convert.h"

namespace graphkit {
namespace {

// Copies x if the single element of `token` is finite; else throws NotFinite before anything is written.
class FiniteGuard final : public Kernel {
  public:
    FiniteGuard(Dims x, ElementType type, Dims token, ElementType token_type);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
};

}  // namespace

FiniteGuard::FiniteGuard(Dims x, ElementType type, Dims token, ElementType token_type) : Kernel("FiniteGuard", 1) {
    if (count(token) != 1) {
        throw NativeError(describe() + ": the token must have one element");
    }
    outputs_ = {{"y", x, type}};
    inputs_ = {{"x", std::move(x), type}, {"token", std::move(token), token_type}};
}

void FiniteGuard::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    with_type(inputs_[1].type, [&](auto element) {
        using T = decltype(element);
        const T value = *static_cast<const T*>(inputs[1]);
        double number = 0;
        if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
            number = static_cast<double>(to_float(value));
        } else {
            number = static_cast<double>(value);
        }
        if (!std::isfinite(number)) {
            throw NotFinite(std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf");
        }
    });
    const std::size_t bytes = static_cast<std::size_t>(count(outputs_[0].shape)) * size_of(outputs_[0].type);
    if (outputs[0] != inputs[0]) {
        std::memcpy(outputs[0], inputs[0], bytes);
    }
}

GRAPHKIT_KERNEL("ai.graphkit", FiniteGuard) {
    const TensorSpec &x = node.input(0).tensor, &token = node.input(1).tensor;
    return std::make_unique<FiniteGuard>(x.shape, x.type, token.shape, token.type);
}

}  // namespace graphkit
