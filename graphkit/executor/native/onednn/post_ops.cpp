#include "onednn/post_ops.h"

#include <unordered_map>

namespace graphkit {
namespace {

using dnnl::algorithm;

algorithm algorithm_of(const Activation& activation) {
    static const auto& algorithms = *new std::unordered_map<std::string, algorithm>{
        // never destroyed: runs make kernels
        {"relu", algorithm::eltwise_relu},
        {"tanh", algorithm::eltwise_tanh},
        {"sigmoid", algorithm::eltwise_logistic},
        {"gelu", algorithm::eltwise_gelu_erf},
        {"gelu_tanh", algorithm::eltwise_gelu_tanh},
        {"swish", algorithm::eltwise_swish},
        {"hard_swish", algorithm::eltwise_hardswish},
        {"hard_sigmoid", algorithm::eltwise_hardsigmoid},
        {"elu", algorithm::eltwise_elu},
        {"clip", algorithm::eltwise_clip},
        {"softplus", algorithm::eltwise_soft_relu},
        {"abs", algorithm::eltwise_abs},
        {"sqrt", algorithm::eltwise_sqrt},
        {"exp", algorithm::eltwise_exp},
        {"square", algorithm::eltwise_square},
        {"linear", algorithm::eltwise_linear},
    };
    const auto found = algorithms.find(activation.kind);
    if (found == algorithms.end()) {
        throw NativeError("there is no activation '" + activation.kind + "'");
    }
    return found->second;
}

}  // namespace

dnnl::post_ops post_ops_of(const Epilogue& epilogue) {
    dnnl::post_ops chain;
    if (epilogue.alpha != 1) {
        chain.append_eltwise(algorithm::eltwise_linear, epilogue.alpha, 0);
    }
    if (epilogue.residual != 0 && !epilogue.residual_last) {
        chain.append_sum(epilogue.residual);
    }
    if (epilogue.activation) {
        const Activation& activation = *epilogue.activation;
        chain.append_eltwise(algorithm_of(activation), activation.alpha, activation.beta);
    }
    if (epilogue.residual != 0 && epilogue.residual_last) {
        chain.append_sum(epilogue.residual);
    }
    return chain;
}

}  // namespace graphkit
