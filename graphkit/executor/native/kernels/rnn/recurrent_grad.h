// The walk back in time of the gradients of recurrent layers (RNN, GRU, LSTM), float32.
#pragma once

#include <string>
#include <vector>

#include "runtime/kernel.h"
#include "kernels/rnn/recurrent_options.h"
#include "kernels/rnn/recurrent_sharing.h"

namespace graphkit {

// Inputs dy, dy_h, (dy_c), gates, (before), r, sequence_lens, (p): the gradients by a layer's results, as the layer has
// them (absent: 0), and what it saved: see Recurrent. `before` is h_before of a GRU, c_before of an LSTM.
//
// Outputs d_gates [D, T, N, gates * H], dinitial_h, (dinitial_c): the gradients by what activations take, and by the
// initial states. An LSTM has d_peepholes [D, T, N, 3 * H], whose sum over steps and sequences is the gradient by p; a
// GRU has `other` [D, T, N, H] of its last gate: what r was multiplied by, or with linear_before_reset the gradient by
// the product. All that follows from these is matrix products over all steps at once, which are not done here.
//
// The work is shared as in Recurrent: any number of threads gives the same bits.
class RecurrentGrad final : public Kernel {
  public:
    // `reads_gates`, `reads_other`: whether somebody reads d_gates and `other`; else they are working memory where the walk
    // needs them. Throws NativeError for shapes or options that are none.
    RecurrentGrad(const std::string& kind, std::int64_t steps, std::int64_t batch, std::int64_t hidden,
                  const RecurrentOptions& options, bool reads_gates, bool reads_other, int threads);

    std::size_t scratch_bytes() const override { return scratch_bytes_; }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::string implementation() const override;

  private:
    struct Run;
    struct Part;

    std::size_t reserve(std::int64_t floats);
    std::int64_t items() const { return layer_.directions * blocks_; }
    std::int64_t width() const { return vectors_ * table_.lanes; }
    std::int64_t state_row(std::int64_t direction, std::int64_t sequence) const;
    std::int64_t time_of(std::int64_t direction, std::int64_t number) const;
    Part part_of(int chunk) const;
    void prepare(const Run& run, int chunk) const;
    void multiply(const Run& run, const Part& part, std::int64_t item, std::int64_t number) const;
    void cell(const Run& run, const Part& part, std::int64_t item, std::int64_t number, CellKind kind) const;
    void step(const Run& run, const Part& part, std::int64_t number) const;
    void reset(const Run& run, const Part& part, std::int64_t number) const;
    void write_states(const Run& run, const Part& part) const;
    void walk_sequences(const Run& run, const Part& part) const;
    void walk(const Run& run, int thread, int threads) const;

    const RecurrentGradTable& table_;
    RecurrentLayer layer_;
    std::int64_t steps_;
    std::int64_t batch_;
    std::int64_t hidden_;
    std::int64_t saved_gates_;
    bool batch_first_;
    bool input_forget_;
    float clip_;
    WalkSharing sharing_;
    std::int64_t vectors_ = 4;  // of a block of hidden units
    std::int64_t blocks_ = 0;
    std::int64_t padded_ = 0;   // hidden units with those that fill the blocks

    std::size_t scratch_bytes_ = 0;
    std::size_t dh_at_ = 0;
    std::size_t dc_at_ = 0;
    std::size_t d_left_at_ = 0;
    std::size_t panels_at_ = 0;
    std::size_t d_gates_at_ = 0;
    std::size_t other_at_ = 0;
    std::size_t lockstep_at_ = 0;
    bool own_gates_;  // in the working memory
    bool own_other_;
};

}  // namespace graphkit
