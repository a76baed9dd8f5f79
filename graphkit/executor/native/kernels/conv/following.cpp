#include "kernels/conv/following.h"

namespace graphkit {

Following::Following(const Epilogue& epilogue, std::int64_t results, std::int64_t filters, int threads) {
    const std::optional<Limits> limits = limits_of(epilogue.activation);
    if (!limits) {
        if (epilogue.residual != 0) {
            product_bytes_ = aligned(static_cast<std::size_t>(results * filters) * sizeof(float));
        }
        Epilogue behind = epilogue;
        behind.bias = false;
        pass_ = std::make_unique<Pointwise>(behind.pass({results, filters, 1}, ElementType::f32, ElementType::f32),
                                            threads);
        return;
    }
    limits_.weight = epilogue.residual;
    limits_.residual_last = epilogue.residual_last;
    limits_.slope = limits->slope;
    limits_.low = limits->low;
    limits_.high = limits->high;
}

TiledEpilogue Following::on_the_way(const void* bias, const void* residual) const {
    TiledEpilogue here = limits_;
    here.bias = static_cast<const float*>(bias);
    if (!pass_) {
        here.residual = static_cast<const float*>(residual);
    }
    return here;
}

float* Following::product(void* y, std::byte* scratch) const {
    return product_bytes_ != 0 ? reinterpret_cast<float*>(scratch) : static_cast<float*>(y);
}

void Following::pass(const void* product, const void* residual, void* y, std::byte* scratch) const {
    if (pass_) {
        const void* operands[] = {product, nullptr, residual};
        void* results[] = {y};
        pass_->run(operands, results, scratch + product_bytes_);
    }
}

}  // namespace graphkit
