// The recurrence, backwards in time, of the gradients of recurrent layers (RNN, GRU, LSTM), float32.
#include <algorithm>
#include <string>
#include <vector>

#include "kernels/rnn/recurrent_options.h"
#include "kernels/rnn/recurrent_sharing.h"
#include "runtime/bindings.h"
#include "runtime/isa.h"
#include "runtime/kernel.h"
#include "runtime/kernel_factory.h"
#include "runtime/recipe.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// Inputs dy, dy_h, (dy_c), gates, (before), r, sequence_lens, (p): the gradients with respect to the results of a
// layer, in the layer's layout (absent: 0), and the outputs that it saved: see Recurrent. `before` is h_before of a
// GRU, c_before of an LSTM.
//
// Outputs d_gates [D, T, N, gates * H], dinitial_h, (dinitial_c): the gradients with respect to the inputs of the
// activations, and to the initial states. For an LSTM also d_peepholes [D, T, N, 3 * H], whose sum over steps and
// sequences is the gradient with respect to p. For a GRU also `other` [D, T, N, H] of its last gate: the factor of r
// or, with linear_before_reset, the gradient with respect to the product. Further gradients are matrix products of
// these over all steps, which this kernel does not compute.
//
// The work is divided as in Recurrent: any number of threads gives the same bits.
class RecurrentGrad final : public Kernel {
  public:
    // `reads_gates`, `reads_other`: whether the outputs d_gates and `other` are used. If not, they are working memory
    // where the recurrence needs them. Throws NativeError for invalid shapes or options.
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
    Part part_of(std::int64_t chunk) const;
    void prepare(const Run& run, std::int64_t chunk) const;
    void multiply(const Run& run, const Part& part, std::int64_t item, std::int64_t number) const;
    void cell(const Run& run, const Part& part, std::int64_t item, std::int64_t number, CellKind kind) const;
    void step(const Run& run, const Part& part, std::int64_t number) const;
    void reset(const Run& run, const Part& part, std::int64_t number) const;
    void write_states(const Run& run, const Part& part) const;
    void run_sequences(const Run& run, const Part& part) const;
    void run_recurrence(const Run& run) const;

    const RecurrentGradTable& table_;
    RecurrentLayer layer_;
    std::int64_t steps_;
    std::int64_t batch_;
    std::int64_t hidden_;
    std::int64_t saved_gates_;
    bool batch_first_;
    bool input_forget_;
    float clip_;
    RecurrenceSharing sharing_;
    std::int64_t vectors_ = 4;  // of a block of hidden units
    std::int64_t blocks_ = 0;
    std::int64_t padded_ = 0;   // hidden units, padded to whole blocks

    std::size_t scratch_bytes_ = 0;
    std::size_t dh_at_ = 0;
    std::size_t dc_at_ = 0;
    std::size_t d_left_at_ = 0;
    std::size_t panels_at_ = 0;
    std::size_t d_gates_at_ = 0;
    std::size_t other_at_ = 0;
    bool own_gates_;  // the gates are in working memory
    bool own_other_;
};

constexpr std::int64_t kLine = static_cast<std::int64_t>(kAlignment / sizeof(float));

// The most rows of a hidden unit in an operand.
constexpr std::int64_t kMostColumns = 4;

bool is_gru(CellKind kind) {
    return kind == CellKind::gru_linear || kind == CellKind::gru_gates;
}

}  // namespace

// The operands and the memory of one run.
struct RecurrentGrad::Run {
    const float* dy;
    const float* d_ends[2];
    const float* gates;
    const float* before;
    const float* r;
    const std::int32_t* lengths;
    const float* peepholes;
    float* d_gates;
    float* d_initial[2];
    float* other;
    float* d_peepholes;
    std::byte* scratch;

    float* at(std::size_t offset) const { return reinterpret_cast<float*>(scratch + offset); }
};

// The part of the work in a chunk: a range of (direction, block of units) pairs, and a range of sequences.
struct RecurrentGrad::Part {
    std::int64_t item_begin;
    std::int64_t item_end;
    std::int64_t batch_begin;
    std::int64_t batch_end;
};

RecurrentGrad::RecurrentGrad(const std::string& kind, std::int64_t steps, std::int64_t batch, std::int64_t hidden,
                             const RecurrentOptions& options, bool reads_gates, bool reads_other, int threads)
    : Kernel(kind + "Grad", threads > 0 ? threads : default_threads()),
      table_(recurrent_grad_table()),
      layer_(read_layer(kind, options)),
      steps_(steps),
      batch_(batch),
      hidden_(hidden),
      saved_gates_(layer_.kind == CellKind::gru_linear ? 4 : layer_.gates),
      batch_first_(options.batch_first),
      input_forget_(options.input_forget),
      clip_(options.clip),
      own_gates_(!reads_gates),
      own_other_(layer_.kind == CellKind::gru_linear && !reads_other) {
    if (steps < 0 || batch < 0 || hidden < 1) {
        throw NativeError(name() + " of " + std::to_string(steps) + " steps, " + std::to_string(batch) +
                          " sequences and " + std::to_string(hidden) + " hidden units");
    }
    require_shape({2, kMostColumns, steps, batch, hidden});
    require_shape({2, kMostColumns, hidden, hidden});
    const std::int64_t directions = layer_.directions;
    const std::int64_t single_blocks = (hidden + table_.lanes - 1) / table_.lanes;
    const auto matrix = static_cast<double>(directions * layer_.gates * hidden * hidden);
    sharing_ = share_recurrence({.steps = steps_,
                                 .batch = batch_,
                                 .groups = (directions * single_blocks * table_.lanes + kLine - 1) / kLine,
                                 .lanes = table_.lanes,
                                 .phases = layer_.kind == CellKind::gru_gates ? 2 : 1,
                                 .step_elements = matrix,
                                 .once_elements = 0,
                                 .once_passes = 1},
                                this->threads());
    // Use wide blocks, which reuse each number of the left side more often, if there are enough of them for all chunks.
    const auto too_wide = [&] {
        const std::int64_t blocks = (single_blocks + vectors_ - 1) / vectors_;
        return vectors_ / 2 >= single_blocks || (!sharing_.by_sequence && directions * blocks < sharing_.chunks);
    };
    while (vectors_ > 1 && too_wide()) {
        vectors_ /= 2;
    }
    blocks_ = (hidden + width() - 1) / width();
    padded_ = (blocks_ * width() + kLine - 1) / kLine * kLine;

    const auto f32 = ElementType::f32;
    const Dims state = batch_first_ ? Dims{batch, directions, hidden} : Dims{directions, batch, hidden};
    const auto saved = [&](std::int64_t columns) { return Dims{directions, steps, batch, columns * hidden}; };
    inputs_ = {{"dy", batch_first_ ? Dims{batch, steps, directions, hidden} : Dims{steps, directions, batch, hidden},
                f32, true},
               {"dy_h", state, f32, true}};
    outputs_ = {{"d_gates", saved(layer_.gates), f32, own_gates_}, {"dinitial_h", state, f32, true}};
    if (layer_.has_cell) {
        inputs_.push_back({"dy_c", state, f32, true});
        outputs_.push_back({"dinitial_c", state, f32, true});
        outputs_.push_back({"d_peepholes", saved(3), f32, true});
    }
    inputs_.push_back({"gates", saved(saved_gates_)});
    if (layer_.has_cell || is_gru(layer_.kind)) {
        inputs_.push_back({layer_.has_cell ? "c_before" : "h_before", saved(1)});
    }
    inputs_.push_back({"r", {directions, layer_.gates * hidden, hidden}});
    inputs_.push_back({"sequence_lens", {batch}, ElementType::i32, true});
    if (layer_.has_cell) {
        inputs_.push_back({"p", {directions, 3 * hidden}, f32, true});
    }
    if (is_gru(layer_.kind)) {
        outputs_.push_back({"other", saved(1), f32, !reads_other});
    }

    const std::int64_t states = directions * batch_ * padded_;
    dh_at_ = reserve(states);
    dc_at_ = reserve(layer_.has_cell ? states : 0);
    d_left_at_ = reserve(layer_.kind == CellKind::gru_gates ? states : 0);
    panels_at_ = reserve(items() * layer_.gates * hidden * width());
    d_gates_at_ = reserve(own_gates_ ? count(saved(layer_.gates)) : 0);
    other_at_ = reserve(own_other_ ? count(saved(1)) : 0);
}

std::size_t RecurrentGrad::reserve(std::int64_t floats) {
    const std::size_t offset = scratch_bytes_;
    const auto bytes = static_cast<std::size_t>(floats) * sizeof(float);
    scratch_bytes_ += aligned(bytes);
    return offset;
}

std::string RecurrentGrad::implementation() const {
    const char* isa = table_.lanes == 16 ? "avx512" : table_.lanes == 8 ? "avx2" : "baseline";
    std::string text = "graphkit:";
    text += isa;
    if (sharing_.parts > 1) {
        text.append(":").append(std::to_string(sharing_.parts)).append(" threads share ");
        text += sharing_.by_sequence ? "sequences" : "units";
    }
    return text;
}

RecurrentGrad::Part RecurrentGrad::part_of(std::int64_t chunk) const {
    if (sharing_.by_sequence || sharing_.chunks == 1) {
        return {0, items(), batch_ * chunk / sharing_.chunks, batch_ * (chunk + 1) / sharing_.chunks};
    }
    const std::int64_t group = std::max<std::int64_t>(kLine / width(), 1);
    const std::int64_t groups = (items() + group - 1) / group;
    const auto border = [&](std::int64_t number) {
        return std::min(groups * number / sharing_.chunks * group, items());
    };
    return {border(chunk), border(chunk + 1), 0, batch_};
}

// The offset of a sequence's states in the caller's array.
std::int64_t RecurrentGrad::state_row(std::int64_t direction, std::int64_t sequence) const {
    return (batch_first_ ? sequence * layer_.directions + direction : direction * batch_ + sequence) * hidden_;
}

// The time of step `number` of the backward recurrence.
std::int64_t RecurrentGrad::time_of(std::int64_t direction, std::int64_t number) const {
    return layer_.reversed[direction] ? number : steps_ - 1 - number;
}

// Packs the panels of r, [gates * H][vectors][lanes] for each block, and copies the gradients with respect to the last
// states.
void RecurrentGrad::prepare(const Run& run, std::int64_t chunk) const {
    const std::int64_t rows = layer_.gates * hidden_;
    for (std::int64_t item = items() * chunk / sharing_.chunks; item < items() * (chunk + 1) / sharing_.chunks;
         ++item) {
        const std::int64_t direction = item / blocks_;
        const std::int64_t column = item % blocks_ * width();
        const std::int64_t units = std::min(width(), hidden_ - column);
        float* panel = run.at(panels_at_) + item * rows * width();
        for (std::int64_t k = 0; k < rows; ++k) {
            std::copy_n(run.r + (direction * rows + k) * hidden_ + column, units, panel + k * width());
            std::fill_n(panel + k * width() + units, width() - units, 0.0F);
        }
        const auto start = [&](const float* given, float* states) {
            for (std::int64_t n = 0; n < batch_; ++n) {
                float* row = states + (direction * batch_ + n) * padded_ + column;
                std::fill_n(row, width(), 0.0F);
                if (given != nullptr) {
                    std::copy_n(given + state_row(direction, n) + column, units, row);
                }
            }
        };
        start(run.d_ends[0], run.at(dh_at_));
        if (layer_.has_cell) {
            start(run.d_ends[1], run.at(dc_at_));
        }
    }
}

// Adds to a block's dh the gradient that passes through the products with r in step `number`.
void RecurrentGrad::multiply(const Run& run, const Part& part, std::int64_t item, std::int64_t number) const {
    const std::int64_t direction = item / blocks_;
    const std::int64_t row = (direction * steps_ + time_of(direction, number)) * batch_;
    const std::int64_t columns = layer_.gates * hidden_;
    GradientProduct block{
        .begin = part.batch_begin,
        .end = part.batch_end,
        .depth = is_gru(layer_.kind) ? 2 * hidden_ : columns,
        .panel = run.at(panels_at_) + item * columns * width(),
        .left = run.d_gates + row * columns,
        .left_step = columns,
        .target = run.at(dh_at_) + direction * batch_ * padded_ + item % blocks_ * width(),
        .target_step = padded_,
        .adds = true,
        .vectors = static_cast<int>(vectors_),
        .split = batch_ <= 2 ? kMaxSplit : 1,
    };
    table_.product(block);
    if (layer_.kind == CellKind::gru_linear) {
        block.left = run.other + row * hidden_;
        block.left_step = hidden_;
        block.panel += block.depth * width();
        block.depth = hidden_;
        table_.product(block);
    }
}

void RecurrentGrad::cell(const Run& run, const Part& part, std::int64_t item, std::int64_t number,
                         CellKind kind) const {
    const std::int64_t direction = item / blocks_;
    const std::int64_t column = item % blocks_ * width();
    const std::int64_t time = time_of(direction, number);
    const std::int64_t row = (direction * steps_ + time) * batch_;
    const std::int64_t state = direction * batch_ * padded_ + column;
    const std::int64_t dy_row =
        batch_first_ ? time * layer_.directions + direction : (time * layer_.directions + direction) * batch_;
    const auto& functions = layer_.functions[direction];
    const auto saved = [&](auto* array, std::int64_t columns) {
        return array == nullptr ? nullptr : array + row * columns * hidden_ + column;
    };
    table_.cell({
        .kind = kind,
        .input_forget = input_forget_,
        .functions = {functions[0], functions[1], functions[2]},
        .clip = clip_,
        .begin = part.batch_begin,
        .end = part.batch_end,
        .units = std::min(width(), hidden_ - column),
        .hidden = hidden_,
        .dy = run.dy == nullptr ? nullptr : run.dy + dy_row * hidden_ + column,
        .dy_step = batch_first_ ? steps_ * layer_.directions * hidden_ : hidden_,
        .gates = saved(run.gates, saved_gates_),
        .gates_step = saved_gates_ * hidden_,
        .before = saved(run.before, 1),
        .peepholes = run.peepholes == nullptr ? nullptr : run.peepholes + direction * 3 * hidden_ + column,
        .dh = run.at(dh_at_) + state,
        .dc = run.at(dc_at_) + state,
        .d_left = run.at(d_left_at_) + state,
        .state_step = padded_,
        .d_gates = saved(run.d_gates, layer_.gates),
        .d_gates_step = layer_.gates * hidden_,
        .other = saved(run.other, 1),
        .d_peepholes = saved(run.d_peepholes, 3),
        .lengths = run.lengths,
        .time = time,
    });
}

// Computes step `number` of the backward recurrence; for a GRU that resets h before its product, the half before that
// product.
void RecurrentGrad::step(const Run& run, const Part& part, std::int64_t number) const {
    for (std::int64_t i = part.item_begin; i < part.item_end; ++i) {
        // Alternate the direction, so that a step finds in the cache the panels that the previous step used last.
        const std::int64_t item = number % 2 == 0 ? i : part.item_begin + part.item_end - 1 - i;
        if (number > 0) {
            multiply(run, part, item, number - 1);
        }
        if (number < steps_) {
            cell(run, part, item, number, layer_.kind);
        }
    }
}

// Computes the second half of such a GRU's step.
void RecurrentGrad::reset(const Run& run, const Part& part, std::int64_t number) const {
    const std::int64_t columns = layer_.gates * hidden_;
    for (std::int64_t item = part.item_begin; item < part.item_end; ++item) {
        const std::int64_t direction = item / blocks_;
        const std::int64_t row = (direction * steps_ + time_of(direction, number)) * batch_;
        table_.product({
            .begin = part.batch_begin,
            .end = part.batch_end,
            .depth = hidden_,
            .panel = run.at(panels_at_) + (item * columns + 2 * hidden_) * width(),
            .left = run.d_gates + row * columns + 2 * hidden_,
            .left_step = columns,
            .target = run.at(d_left_at_) + direction * batch_ * padded_ + item % blocks_ * width(),
            .target_step = padded_,
            .adds = false,
            .vectors = static_cast<int>(vectors_),
            .split = batch_ <= 2 ? kMaxSplit : 1,
        });
        cell(run, part, item, number, CellKind::gru_output);
    }
}

void RecurrentGrad::write_states(const Run& run, const Part& part) const {
    const auto write = [&](const float* from, float* to) {
        for (std::int64_t item = part.item_begin; to != nullptr && item < part.item_end; ++item) {
            const std::int64_t direction = item / blocks_;
            const std::int64_t column = item % blocks_ * width();
            for (std::int64_t n = part.batch_begin; n < part.batch_end; ++n) {
                std::copy_n(from + (direction * batch_ + n) * padded_ + column, std::min(width(), hidden_ - column),
                            to + state_row(direction, n) + column);
            }
        }
    };
    write(run.at(dh_at_), run.d_initial[0]);
    if (layer_.has_cell) {
        write(run.at(dc_at_), run.d_initial[1]);
    }
}

void RecurrentGrad::run_sequences(const Run& run, const Part& part) const {
    for (std::int64_t direction = 0; direction < layer_.directions; ++direction) {
        const Part one{direction * blocks_, (direction + 1) * blocks_, part.batch_begin, part.batch_end};
        for (std::int64_t number = 0; number <= steps_; ++number) {
            step(run, one, number);
            if (layer_.kind == CellKind::gru_gates && number < steps_) {
                reset(run, one, number);
            }
        }
    }
    write_states(run, part);
}

void RecurrentGrad::run_recurrence(const Run& run) const {
    // A phase starts after the previous one. Threads begin with the same chunks, whose data are in their caches.
    const auto phase = [&](auto&& work) {
        for_each_chunk(sharing_.parts, sharing_.chunks, sharing_.nanoseconds, work);
    };
    phase([&](std::int64_t chunk) { prepare(run, chunk); });
    if (sharing_.by_sequence || sharing_.chunks == 1) {
        phase([&](std::int64_t chunk) { run_sequences(run, part_of(chunk)); });
        return;
    }
    for (std::int64_t number = 0; number < steps_; ++number) {
        phase([&](std::int64_t chunk) { step(run, part_of(chunk), number); });
        if (layer_.kind == CellKind::gru_gates) {
            phase([&](std::int64_t chunk) { reset(run, part_of(chunk), number); });
        }
    }
    phase([&](std::int64_t chunk) {
        step(run, part_of(chunk), steps_);
        write_states(run, part_of(chunk));
    });
}

void RecurrentGrad::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const void* const* input = inputs;
    void* const* output = outputs;
    const auto next = [&](bool is_there) { return is_there ? static_cast<const float*>(*input++) : nullptr; };
    const auto next_output = [&](bool is_there) { return is_there ? static_cast<float*>(*output++) : nullptr; };
    const bool lstm = layer_.has_cell;
    const bool gru = is_gru(layer_.kind);
    // The elements of a braced list are evaluated in order.
    Run memory{.dy = next(true),
               .d_ends = {next(true), next(lstm)},
               .gates = next(true),
               .before = next(lstm || gru),
               .r = next(true),
               .lengths = static_cast<const std::int32_t*>(*input++),
               .peepholes = next(lstm),
               .d_gates = next_output(true),
               .d_initial = {next_output(true), next_output(lstm)},
               .other = next_output(gru),
               .d_peepholes = next_output(lstm),
               .scratch = scratch};
    if (own_gates_) {
        memory.d_gates = memory.at(d_gates_at_);
    }
    if (own_other_) {
        memory.other = memory.at(other_at_);
    }
    run_recurrence(memory);
}

namespace {

// Makes the kernels of a layer's gradient. The sizes follow from the operands `gates` and `r`, at these positions.
class RecurrentGradFactory final : public KernelFactory {
  public:
    RecurrentGradFactory(std::string kind, std::size_t gates, std::size_t r, RecurrentOptions options, bool reads_gates,
                         bool reads_other, int threads)
        : kind_(std::move(kind)),
          gates_(gates),
          r_(r),
          options_(std::move(options)),
          reads_gates_(reads_gates),
          reads_other_(reads_other),
          threads_(threads) {}

    std::unique_ptr<Kernel> make(const Shapes& inputs, const Shapes&) const override {
        const Dims& gates = present(inputs, gates_);
        return std::make_unique<RecurrentGrad>(kind_, gates.at(1), gates.at(2), present(inputs, r_).at(2), options_,
                                               reads_gates_, reads_other_, threads_);
    }

  private:
    std::string kind_;
    std::size_t gates_, r_;
    RecurrentOptions options_;
    bool reads_gates_, reads_other_;
    int threads_;
};

}  // namespace

static const RecipeKind recurrent_grad_recipe(
    "RecurrentGrad",
    +[](RecurrentGrad* self, const std::string& kind, std::int64_t steps, std::int64_t batch, std::int64_t hidden,
        std::string direction, GateFunctions activations, std::optional<float> clip, bool linear_before_reset,
        bool input_forget, bool batch_first, bool reads_gates, bool reads_other, int threads) {
        new (self) RecurrentGrad(kind, steps, batch, hidden,
                                 options_of(std::move(direction), std::move(activations), clip, linear_before_reset,
                                            input_forget, batch_first),
                                 reads_gates, reads_other, threads);
    });

static const RecipeKind recurrent_grad_factory_recipe(
    "RecurrentGradFactory",
    +[](RecurrentGradFactory* self, std::string kind, std::size_t gates, std::size_t r, std::string direction,
        GateFunctions activations, std::optional<float> clip, bool linear_before_reset, bool input_forget,
        bool batch_first, bool reads_gates, bool reads_other, int threads) {
        new (self) RecurrentGradFactory(std::move(kind), gates, r,
                                        options_of(std::move(direction), std::move(activations), clip,
                                                   linear_before_reset, input_forget, batch_first),
                                        reads_gates, reads_other, threads);
    });

GRAPHKIT_BINDINGS(recurrent_grad, "sized_kernels") {
    nb::class_<RecurrentGrad, Kernel>(m, "RecurrentGrad")
        .def("__init__", recurrent_grad_recipe.init(), "kind"_a, "steps"_a, "batch"_a, "hidden"_a, nb::kw_only(),
             "direction"_a = "forward", "activations"_a = GateFunctions{}, "clip"_a.none() = nb::none(),
             "linear_before_reset"_a = false, "input_forget"_a = false, "batch_first"_a = false, "reads_gates"_a = true,
             "reads_other"_a = true, "threads"_a = 0);
    nb::class_<RecurrentGradFactory, KernelFactory>(m, "RecurrentGradFactory",
                                                    "Makes the kernels of a layer's gradient for all sizes.")
        .def("__init__", recurrent_grad_factory_recipe.init(), "kind"_a, nb::kw_only(), "gates"_a, "r"_a, "direction"_a,
             "activations"_a, "clip"_a.none(), "linear_before_reset"_a, "input_forget"_a, "batch_first"_a,
             "reads_gates"_a, "reads_other"_a, "threads"_a, "gates, r: positions of these operands.");
}

}  // namespace graphkit
