#include "kernels/rnn/recurrent_options.h"

#include <array>

#include "runtime/kernel.h"

namespace graphkit {
namespace {

struct NamedFunction {
    const char* name;
    GateFunction kind;
};

constexpr std::array<NamedFunction, 11> kFunctions{{{"sigmoid", GateFunction::sigmoid},
                                                    {"tanh", GateFunction::tanh},
                                                    {"relu", GateFunction::relu},
                                                    {"affine", GateFunction::affine},
                                                    {"leakyrelu", GateFunction::leaky_relu},
                                                    {"thresholdedrelu", GateFunction::thresholded_relu},
                                                    {"scaledtanh", GateFunction::scaled_tanh},
                                                    {"hardsigmoid", GateFunction::hard_sigmoid},
                                                    {"elu", GateFunction::elu},
                                                    {"softsign", GateFunction::softsign},
                                                    {"softplus", GateFunction::softplus}}};

GateFunction function_named(const std::string& name) {
    for (const NamedFunction& entry : kFunctions) {
        if (name == entry.name) {
            return entry.kind;
        }
    }
    throw NativeError("no activation '" + name + "' of recurrent cells");
}

}  // namespace

RecurrentLayer read_layer(const std::string& kind, const RecurrentOptions& options) {
    RecurrentLayer layer;
    if (kind == "LSTM") {
        layer.kind = CellKind::lstm;
        layer.gates = 4;
        layer.has_cell = true;
    } else if (kind == "GRU") {
        layer.kind = options.linear_before_reset ? CellKind::gru_linear : CellKind::gru_gates;
        layer.gates = 3;
    } else if (kind != "RNN") {
        throw NativeError("no recurrent layer '" + kind + "'");
    }
    if (options.direction == "bidirectional") {
        layer.directions = 2;
        layer.reversed[1] = true;
    } else if (options.direction == "reverse") {
        layer.reversed[0] = true;
    } else if (options.direction != "forward") {
        throw NativeError("no direction '" + options.direction + "'");
    }
    const std::size_t count = layer.has_cell ? 3 : layer.gates == 1 ? 1 : 2;
    const auto given = options.activations.size();
    if (given != 0 && given != count * static_cast<std::size_t>(layer.directions)) {
        throw NativeError(kind + ": " + std::to_string(given) + " activations for " + std::to_string(layer.directions) +
                          " directions of " + std::to_string(count));
    }
    for (std::size_t d = 0; d < static_cast<std::size_t>(layer.directions); ++d) {
        for (std::size_t i = 0; i < count; ++i) {
            GateActivation& function = layer.functions[d][i];
            if (given == 0) {
                function.kind = i == 0 && layer.gates > 1 ? GateFunction::sigmoid : GateFunction::tanh;
            } else {
                const auto& [name, alpha, beta] = options.activations[d * count + i];
                function = {function_named(name), alpha, beta};
            }
        }
    }
    return layer;
}

RecurrentOptions options_of(std::string direction, GateFunctions activations, std::optional<float> clip,
                            bool linear_before_reset, bool input_forget, bool batch_first) {
    RecurrentOptions options;
    options.direction = std::move(direction);
    options.activations = std::move(activations);
    options.clip = clip.value_or(options.clip);
    options.linear_before_reset = linear_before_reset;
    options.input_forget = input_forget;
    options.batch_first = batch_first;
    return options;
}

}  // namespace graphkit
