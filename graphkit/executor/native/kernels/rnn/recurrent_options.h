// How a recurrent layer is described: what its kernel and that of its gradient read alike.
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
    // (name in lower case, alpha, beta) of each function: one for an RNN, two for a GRU, three for an LSTM, and as many
    // again for the other direction. Empty: the standard's.
    std::vector<std::tuple<std::string, float, float>> activations;
    float clip = std::numeric_limits<float>::infinity();
    bool linear_before_reset = false;
    bool input_forget = false;
    bool batch_first = false;
    bool pack_w = false;  // the matrices are constant: they come in panels
    bool pack_r = false;
    bool saves = false;  // what the gradient needs are results, too
};

// What the names among the options stand for.
struct RecurrentLayer {
    CellKind kind = CellKind::rnn;
    std::int64_t gates = 1;
    std::int64_t directions = 1;
    bool has_cell = false;
    bool reversed[2] = {false, false};
    GateActivation functions[2][3];
};

// kind: "RNN", "GRU", "LSTM". Throws NativeError for names, or numbers of them, that are none.
RecurrentLayer read_layer(const std::string& kind, const RecurrentOptions& options);

using GateFunctions = std::vector<std::tuple<std::string, float, float>>;

// The options that forward and gradient have in common; no `clip` clips nothing.
RecurrentOptions options_of(std::string direction, GateFunctions activations, std::optional<float> clip,
                            bool linear_before_reset, bool input_forget, bool batch_first);

}  // namespace graphkit
