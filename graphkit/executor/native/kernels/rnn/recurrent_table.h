// The vector part of recurrent layers: what recurrent.isa.cpp computes, and how it is called.
//
// Hidden units come in blocks of one vector. The matrices of a block are a panel [depth][vectors][lanes]: for each row
// of the product's left side, `vectors` vectors of results (one for each gate) stay in registers over the whole depth.
#pragma once

#include <cstdint>

#include "runtime/isa.h"

namespace graphkit {

enum class GateFunction : std::uint8_t {
    sigmoid,
    tanh,
    relu,
    affine,
    leaky_relu,
    thresholded_relu,
    scaled_tanh,
    hard_sigmoid,
    elu,
    softsign,
    softplus
};

struct GateActivation {
    GateFunction kind = GateFunction::sigmoid;
    float alpha = 0;
    float beta = 0;
};

enum class CellKind : std::uint8_t {
    rnn,
    lstm,
    gru_linear,  // the reset gate multiplies what the matrix gave
    gru_gates,   // update gate and reset h; gru_output finishes the step when they are there for all units
    gru_output,
};

// How often a sum over the depth is split, to hide the latency of few chains. It decides the order of additions.
constexpr int kMaxSplit = 2;

// Part of the input's product with one block of w: target[row] (+)= x[row] @ panel. Rows are (step, sequence) pairs;
// row number i is sequence `batch_begin + i % batch` at step `i / batch`.
struct ProjectionBlock {
    const float* x;             // of step 0
    std::int64_t x_step;        // negative for a recurrence from the end
    std::int64_t x_sequence;
    std::int64_t batch_begin;
    std::int64_t batch;
    std::int64_t rows;
    std::int64_t depth;
    const float* panel;
    const float* start;         // [vectors][lanes] that sums start from; null: from what the target holds
    float* target;              // of step 0, sequence 0
    std::int64_t target_step;   // between steps; sequences lie [vectors][lanes] apart
    int vectors;
    int split;
};

// One step of one block of units, for the sequences [begin, end). Pointers are to sequence 0, steps between sequences.
struct CellBlock {
    CellKind kind;
    bool input_forget;
    int split;
    GateActivation functions[3];
    float clip;                   // infinity: none
    std::int64_t begin;
    std::int64_t end;
    std::int64_t depth;           // hidden units
    const float* panel;
    const float* left;            // all units' h (gru_output: reset h)
    const float* projected;       // this block's part of the input's product
    std::int64_t projected_step;
    const float* bias;            // GRU: of the recurrent matrix's last gate [lanes]
    const float* peepholes;       // LSTM: [3][lanes] of i, o, f, or null
    std::int64_t state_step;
    const float* h;               // this block's units, as the following
    float* h_next;
    float* c;                     // LSTM's state; GRU's update gate between its two halves
    float* reset;                 // GRU: reset h
    float* y;                     // null when nobody reads it
    std::int64_t y_step;
    float* saved_gates;           // null when nobody reads them, as the following
    std::int64_t saved_gates_step;
    float* saved_h;               // before the step
    float* saved_c;
    std::int64_t saved_step;
    std::int64_t units;           // that exist, at most `lanes`
    const std::int32_t* lengths;  // null: all sequences go on
    std::int64_t time;
};

// target[row] (+)= left[row] @ panel for the sequences [begin, end), the panel [depth][vectors][lanes].
struct GradientProduct {
    std::int64_t begin;
    std::int64_t end;
    std::int64_t depth;
    const float* panel;
    const float* left;
    std::int64_t left_step;
    float* target;
    std::int64_t target_step;
    bool adds;
    int vectors;
    int split;
};

// One step back of one block of units, for the sequences [begin, end): from the gradients by its results to those by
// what its activations took, and to the part of those by the state before it that no product with r gives. A GRU that
// resets h before its product does it in two halves (gru_gates, gru_output), between which d_left is computed.
struct CellGradient {
    CellKind kind;
    bool input_forget;
    GateActivation functions[3];
    float clip;
    std::int64_t begin;
    std::int64_t end;
    std::int64_t units;
    std::int64_t hidden;          // from one gate to the next
    const float* dy;              // null: 0
    std::int64_t dy_step;
    const float* gates;
    std::int64_t gates_step;
    const float* before;          // LSTM's c, GRU's h before the step
    const float* peepholes;       // null: none
    float* dh;                    // by the state after the step, then before it
    float* dc;
    const float* d_left;          // by reset h
    std::int64_t state_step;
    float* d_gates;
    std::int64_t d_gates_step;
    float* other;                 // GRU: see RecurrentGrad; null: nobody reads it
    float* d_peepholes;           // null: nobody reads them
    const std::int32_t* lengths;
    std::int64_t time;
};

struct RecurrentTable {
    std::int64_t lanes;
    void (*project)(const ProjectionBlock& block);
    void (*step)(const CellBlock& block);
};

GRAPHKIT_ISA_TABLE(RecurrentTable, recurrent_table);

struct RecurrentGradTable {
    std::int64_t lanes;
    void (*product)(const GradientProduct& block);
    void (*cell)(const CellGradient& block);
};

GRAPHKIT_ISA_TABLE(RecurrentGradTable, recurrent_grad_table);

}  // namespace graphkit
