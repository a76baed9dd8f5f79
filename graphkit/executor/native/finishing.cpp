#include "finishing.h"

namespace graphkit {

using dnnl::algorithm;
using dnnl::memory;

Finish::Finish(bool has_bias, const Epilogue& epilogue)
    : bias(has_bias),
      sum(epilogue.residual ? 1.0F : 0.0F),
      sum_last(epilogue.residual_last),
      activation(epilogue.activation) {}

dnnl::post_ops Finish::chain() const {
    dnnl::post_ops chain;
    if (alpha != 1) {
        chain.append_eltwise(algorithm::eltwise_linear, alpha, 0);
    }
    if (sum != 0 && !sum_last) {
        chain.append_sum(sum);
    }
    if (activation) {
        chain.append_eltwise(algorithm_of(*activation), activation->alpha, activation->beta);
    }
    if (sum != 0 && sum_last) {
        chain.append_sum(sum);
    }
    return chain;
}

Finishing::Finishing(const Finish& finish, const Dims& shape, ElementType type)
    : shape_(shape),
      type_(type),
      apart_(finish.sum != 0 || type != ElementType::f32),
      elements_(static_cast<std::size_t>(count(shape))) {
    Place at = apart_ ? kProduct : kResult;
    const auto sum = [&] {
        if (finish.sum != 1) {
            add_eltwise(kResult, algorithm::eltwise_linear, finish.sum, 0);
        }
        // Of two operands the first may be the result.
        const Place to = type == ElementType::f32 ? kResult : kProduct;
        add_sum(to, to == kResult ? kProduct : kResult, to);
        at = to;
    };
    if (finish.alpha != 1) {
        add_eltwise(at, algorithm::eltwise_linear, finish.alpha, 0);
    }
    if (finish.bias) {
        add_sum(at, kBias, at);
    }
    if (finish.sum != 0 && !finish.sum_last) {
        sum();
    }
    if (finish.activation) {
        add_eltwise(at, algorithm_of(*finish.activation), finish.activation->alpha, finish.activation->beta);
    }
    if (finish.sum != 0 && finish.sum_last) {
        sum();
    }
    if (at == kProduct) {
        const auto from = layout(kProduct);
        const auto to = layout(kResult);
        const auto descriptor =
            choose<dnnl::reorder>(any_name, engine(), from, engine(), to, Operation::attributes());
        Operation operation;
        operation.input(DNNL_ARG_FROM, kProduct, from, from);
        operation.output(DNNL_ARG_TO, kResult, to, to);
        operation.finish(descriptor, dnnl::reorder(descriptor));
        add(std::move(operation));
    }
}

memory::desc Finishing::layout(Place place) const {
    return place == kBias ? plain({1, shape_[1], 1}, type_)
                          : plain(shape_, place == kProduct ? ElementType::f32 : type_);
}

void Finishing::add(Operation operation) {
    scratch_bytes_ = std::max(scratch_bytes_, operation.scratch_bytes());
    steps_.push_back(std::move(operation));
}

void Finishing::add_eltwise(Place at, algorithm kind, float alpha, float beta) {
    const memory::desc y = layout(at);
    const auto descriptor = choose<dnnl::eltwise_forward>(any_name, engine(), dnnl::prop_kind::forward_inference, kind,
                                                          y, y, alpha, beta, Operation::attributes());
    Operation operation;
    operation.input(DNNL_ARG_SRC, at, y, y);
    operation.output(DNNL_ARG_DST, at, y, y);
    operation.finish(descriptor, dnnl::eltwise_forward(descriptor));
    add(std::move(operation));
}

void Finishing::add_sum(Place a, Place b, Place to) {
    const memory::desc left = layout(a);
    const memory::desc right = layout(b);
    const memory::desc y = layout(to);
    const auto descriptor = choose<dnnl::binary>(any_name, engine(), algorithm::binary_add, left, right, y,
                                                 Operation::attributes());
    Operation operation;
    operation.input(DNNL_ARG_SRC_0, a, left, left);
    operation.input(DNNL_ARG_SRC_1, b, right, right);
    operation.output(DNNL_ARG_DST, to, y, y);
    operation.finish(descriptor, dnnl::binary(descriptor));
    add(std::move(operation));
}

void Finishing::run(void* product, const void* bias, void* y, std::byte* scratch) const {
    const void* inputs[kPlaces] = {product, bias, y};
    void* outputs[kPlaces] = {product, nullptr, y};
    for (const Operation& step : steps_) {
        step.run(inputs, outputs, scratch);
    }
}

}  // namespace graphkit
