// The description of a recurrent layer, for its kernel and for the kernel of its gradient.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/rnn/recurrent_table.h"

namespace graphkit {

struct RecurrentOptions {
    std::string direction = "forward";  // "reverse", "bidirectional"
    // (name in lower case, alpha, beta) of each activation: one for an RNN, two for a GRU, three for an LSTM; for two
    // directions, twice as many. Empty: ONNX's defaults.
    std::vector<std::tuple<std::string, float, float>> activations;
    float clip = std::numeric_limits<float>::infinity();
    bool linear_before_reset = false;
    bool input_forget = false;
    bool batch_first = false;
    bool pack_w = false;  // the matrices are constant: they come packed in panels
    bool pack_r = false;
    bool saves = false;  // the outputs that the gradient reads are computed as well
};

// The options in numbers instead of names.
struct RecurrentLayer {
    CellKind kind = CellKind::rnn;
    std::int64_t gates = 1;
    std::int64_t directions = 1;
    bool has_cell = false;
    bool reversed[2] = {false, false};
    GateActivation functions[2][3];
};

// kind: "RNN", "GRU", "LSTM". Throws NativeError for unknown names, or for a wrong number of them.
RecurrentLayer read_layer(const std::string& kind, const RecurrentOptions& options);

using GateFunctions = std::vector<std::tuple<std::string, float, float>>;

// The options that a layer and its gradient share. No `clip`: nothing is clipped.
RecurrentOptions options_of(std::string direction, GateFunctions activations, std::optional<float> clip,
                            bool linear_before_reset, bool input_forget, bool batch_first);

}  // namespace graphkit
