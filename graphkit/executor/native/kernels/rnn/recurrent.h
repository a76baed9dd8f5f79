// The recurrent layers of ONNX (RNN, GRU, LSTM), float32.
#pragma once

#include <string>
#include <vector>

#include "kernels/rnn/recurrent_options.h"
#include "kernels/rnn/recurrent_sharing.h"
#include "runtime/kernel.h"

namespace graphkit {

// Inputs x, w, r, b, sequence_lens, initial_h, (initial_c, p) and outputs y, y_h, (y_c) are those of ONNX. With
// `saves`, further outputs are what RecurrentGrad reads: h_before and c_before [D, T, N, H], and gates [D, T, N, gates
// * H], the inputs of the activations without peepholes and before clipping. With linear_before_reset, there is a
// fourth output: R h + Rb of the last gate.
//
// The work is divided in one of two ways. Either a chunk has some sequences, and runs each from its first to its last
// step; or it has some blocks of hidden units, and each step starts after the previous one is complete. The input's
// product with w is computed for several steps at a time, in the layout in which the steps read it. Sums do not depend
// on the division: any number of threads gives the same bits.
class Recurrent final : public Kernel {
  public:
    // kind: "RNN", "GRU", "LSTM". Throws NativeError for invalid shapes or options.
    Recurrent(const std::string& kind, const Dims& x, std::int64_t hidden, const RecurrentOptions& options,
              int threads);

    std::size_t scratch_bytes() const override { return scratch_bytes_; }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

    std::vector<int> packed_inputs() const override;
    std::size_t packed_bytes(int input) const override;
    std::string packed_layout(int input) const override;
    void pack(int input, const void* plain, void* packed) const override;
    std::string implementation() const override;

  private:
    struct Run;
    struct Part;

    RecurrenceSharing choose_sharing() const;
    void lay_out_scratch();
    std::size_t reserve(std::int64_t bytes);
    std::int64_t items() const { return directions_ * blocks_; }
    std::int64_t panel_size(int input) const;
    void pack_item(int input, std::int64_t item, const float* plain, float* packed) const;
    std::int64_t groups() const;
    Part part_of(std::int64_t chunk) const;
    void prepare(const Run& run, std::int64_t chunk) const;
    void project(const Run& run, const Part& part, std::int64_t first) const;
    CellBlock block_of(const Run& run, const Part& part, std::int64_t number, CellKind kind, std::int64_t item) const;
    void step(const Run& run, const Part& part, std::int64_t number, CellKind kind) const;
    void write_states(const Run& run, const Part& part) const;
    void run_sequences(const Run& run, const Part& part) const;
    void run_recurrence(const Run& run) const;

    const RecurrentTable& table_;
    RecurrentLayer layer_;
    std::int64_t steps_ = 0;
    std::int64_t batch_ = 0;
    std::int64_t features_ = 0;
    std::int64_t hidden_;
    std::int64_t gates_;
    std::int64_t directions_;
    std::int64_t blocks_ = 0;  // of hidden units, one vector each
    std::int64_t padded_ = 0;  // hidden units, padded to whole cache lines
    std::int64_t chunk_ = 0;  // number of steps whose input products are computed at a time
    CellKind kind_;
    bool batch_first_;
    bool has_cell_;
    bool input_forget_;
    bool packed_[2];
    float clip_;
    RecurrenceSharing sharing_;
    std::int64_t saved_gates_ = 0;

    std::size_t scratch_bytes_ = 0;
    std::size_t h_at_[2] = {0, 0};  // of this step and of the next one, alternating
    std::size_t c_at_ = 0;
    std::size_t reset_at_ = 0;
    std::size_t projected_at_ = 0;
    std::size_t start_at_ = 0;
    std::size_t recurrent_bias_at_ = 0;
    std::size_t peepholes_at_ = 0;
    std::size_t panels_at_[2] = {0, 0};
};

}  // namespace graphkit
