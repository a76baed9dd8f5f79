// The vector functions of recurrent layers, and their arguments.
//
// Hidden units are divided into blocks of one vector. The matrices of a block are a panel [depth][vectors][lanes]: for
// each row of the product's left side, `vectors` vectors of results (one for each gate) stay in registers over the
// whole depth.
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
    gru_linear,  // the reset gate multiplies the product with the matrix
    gru_gates,   // update gate and reset h; gru_output finishes the step after these are complete for all units
    gru_output,
};

// Largest number of interleaved sums into which a sum over the depth is split, to hide latency if there are few chains.
// It affects the order of additions.
constexpr int kMaxSplit = 2;

// A part of the input's product with one block of w: target[row] (+)= x[row] @ panel. Rows are (step, sequence) pairs:
// row i is sequence `batch_begin + i % batch` at step `i / batch`.
struct ProjectionBlock {
    const float* x;             // of step 0
    std::int64_t x_step;        // negative if the recurrence runs from the end
    std::int64_t x_sequence;
    std::int64_t batch_begin;
    std::int64_t batch;
    std::int64_t rows;
    std::int64_t depth;
    const float* panel;
    const float* start;         // [vectors][lanes], the initial value of the sums; null: the target's contents
    float* target;              // of step 0, sequence 0
    std::int64_t target_step;   // from step to step; sequences are [vectors][lanes] apart
    int vectors;
    int split;
};

// The part of a step that a call computes. An LSTM or RNN can compute the sums of several blocks, and then their
// states: if there are few sequences, the long chain of activations of one block would delay the products of the next
// block.
enum class CellPart : std::uint8_t {
    whole,
    sums,    // stored in `projected`
    states,  // from the sums in `projected`
};

// One step of one block of units, for the sequences [begin, end). Pointers are those of sequence 0; steps are those
// between sequences.
struct CellBlock {
    CellKind kind;
    CellPart part;
    bool input_forget;
    int split;
    GateActivation functions[3];
    float clip;                   // infinity: no clipping
    std::int64_t begin;
    std::int64_t end;
    std::int64_t depth;           // number of hidden units
    const float* panel;
    const float* left;            // h of all units (gru_output: reset h)
    float* projected;             // this block's part of the input's product
    std::int64_t projected_step;
    const float* bias;            // GRU: the recurrent bias of the last gate [lanes]
    const float* peepholes;       // LSTM: [3][lanes] of i, o, f, or null
    std::int64_t state_step;
    const float* h;               // of this block's units, like the following
    float* h_next;
    float* c;                     // LSTM: the state; GRU: the update gate, between the two halves
    float* reset;                 // GRU: reset h
    float* y;                     // null if it is not used
    std::int64_t y_step;
    float* saved_gates;           // null if not used, like the following
    std::int64_t saved_gates_step;
    float* saved_h;               // before the step
    float* saved_c;
    std::int64_t saved_step;
    std::int64_t units;           // number of units that exist, at most `lanes`
    const std::int32_t* lengths;  // null: no sequence ends before the last step
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

// One backward step of one block of units, for the sequences [begin, end). From the gradients with respect to the
// results, it computes those with respect to the inputs of the activations, and the part of the gradient with respect
// to the previous state that does not pass through a product with r. A GRU that resets h before its product does this
// in two halves (gru_gates, gru_output); d_left is computed between them.
struct CellGradient {
    CellKind kind;
    bool input_forget;
    GateActivation functions[3];
    float clip;
    std::int64_t begin;
    std::int64_t end;
    std::int64_t units;
    std::int64_t hidden;          // elements from one gate to the next
    const float* dy;              // null: 0
    std::int64_t dy_step;
    const float* gates;
    std::int64_t gates_step;
    const float* before;          // before the step: c of an LSTM, h of a GRU
    const float* peepholes;       // null if there are none
    float* dh;                    // with respect to the state after the step, then before it
    float* dc;
    const float* d_left;          // with respect to the reset h
    std::int64_t state_step;
    float* d_gates;
    std::int64_t d_gates_step;
    float* other;                 // GRU: see RecurrentGrad; null if it is not used
    float* d_peepholes;           // null if they are not used
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
