#include "kernels/rnn/recurrent.h"

#include <algorithm>
#include <cstring>

#include "runtime/bindings.h"
#include "runtime/isa.h"
#include "runtime/kernel_factory.h"
#include "runtime/recipe.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// Rows of the input's product that are computed at a time: enough to reuse each panel, few enough to stay in the cache.
constexpr std::int64_t kChunkRows = 128;
// Depth of the part of a panel that stays in the cache while rows are processed.
constexpr std::int64_t kDepth = 512;
// With at most this number of sequences, the sums of this number of blocks are computed before their states.
constexpr std::int64_t kFewSequences = 2;
constexpr std::int64_t kBlocksTogether = 16;
constexpr std::int64_t kLine = static_cast<std::int64_t>(kAlignment / sizeof(float));

enum Input : std::size_t { kX, kW, kR, kB, kLengths, kInitialH, kInitialC, kPeepholes };

}  // namespace

// The memory of one run.
struct Recurrent::Run {
    const void* const* inputs;
    void* const* outputs;
    std::byte* scratch;

    const float* in(Input position) const { return static_cast<const float*>(inputs[position]); }
    float* out(std::size_t position) const { return static_cast<float*>(outputs[position]); }
    float* at(std::size_t offset) const { return reinterpret_cast<float*>(scratch + offset); }
};

// The part of the work in a chunk: a range of (direction, block of units) pairs, and a range of sequences.
struct Recurrent::Part {
    std::int64_t item_begin;
    std::int64_t item_end;
    std::int64_t batch_begin;
    std::int64_t batch_end;
};

Recurrent::Recurrent(const std::string& kind, const Dims& x, std::int64_t hidden, const RecurrentOptions& options,
                     int threads)
    : Kernel(kind, threads > 0 ? threads : default_threads()),
      table_(recurrent_table()),
      layer_(read_layer(kind, options)),
      hidden_(hidden),
      gates_(layer_.gates),
      directions_(layer_.directions),
      kind_(layer_.kind),
      batch_first_(options.batch_first),
      has_cell_(layer_.has_cell),
      input_forget_(options.input_forget),
      packed_{options.pack_w, options.pack_r},
      clip_(options.clip) {
    if (x.size() != 3 || hidden < 1) {
        throw NativeError(kind + " of x " + to_string(x) + " with " + std::to_string(hidden) +
                          " hidden units: x has three dimensions, and there is at least one unit");
    }
    steps_ = x[batch_first_ ? 1 : 0];
    batch_ = x[batch_first_ ? 0 : 1];
    features_ = x[2];
    blocks_ = (hidden + table_.lanes - 1) / table_.lanes;
    padded_ = (hidden + kLine - 1) / kLine * kLine;

    const std::int64_t columns = gates_ * hidden;
    const Dims state = batch_first_ ? Dims{batch_, directions_, hidden} : Dims{directions_, batch_, hidden};
    const auto f32 = ElementType::f32;
    inputs_ = {{"x", x},
               {"w", {directions_, columns, features_}},
               {"r", {directions_, columns, hidden}},
               {"b", {directions_, 2 * columns}, f32, true},
               {"sequence_lens", {batch_}, ElementType::i32, true},
               {"initial_h", state, f32, true}};
    const Dims y = batch_first_ ? Dims{batch_, steps_, directions_, hidden} : Dims{steps_, directions_, batch_, hidden};
    outputs_ = {{"y", y, f32, true}, {"y_h", state, f32, true}};
    if (has_cell_) {
        inputs_.push_back({"initial_c", state, f32, true});
        inputs_.push_back({"p", {directions_, 3 * hidden}, f32, true});
        outputs_.push_back({"y_c", state, f32, true});
    }
    const std::int64_t rows = steps_ * batch_;
    const std::int64_t chunks = std::max<std::int64_t>(std::min(steps_, (rows + kChunkRows - 1) / kChunkRows), 1);
    chunk_ = std::max<std::int64_t>((steps_ + chunks - 1) / chunks, 1);
    if (options.saves) {
        saved_gates_ = kind_ == CellKind::gru_linear ? 4 : gates_;
        outputs_.push_back({"gates", {directions_, steps_, batch_, saved_gates_ * hidden}, f32, true});
        outputs_.push_back({"h_before", {directions_, steps_, batch_, hidden}, f32, true});
        if (has_cell_) {
            outputs_.push_back({"c_before", {directions_, steps_, batch_, hidden}, f32, true});
        }
    }
    sharing_ = choose_sharing();
    lay_out_scratch();
}

RecurrenceSharing Recurrent::choose_sharing() const {
    const auto number = [](std::int64_t value) { return static_cast<double>(value); };
    return share_recurrence({.steps = steps_,
                             .batch = batch_,
                             .groups = groups(),
                             .lanes = table_.lanes,
                             .phases = kind_ == CellKind::gru_gates ? 2 : 1,
                             .step_elements = number(directions_ * gates_ * hidden_ * hidden_),
                             .once_elements = number(directions_ * gates_ * hidden_ * features_),
                             .once_passes = number((steps_ + chunk_ - 1) / chunk_)},
                            threads());
}

std::size_t Recurrent::reserve(std::int64_t floats) {
    const std::size_t offset = scratch_bytes_;
    const auto bytes = static_cast<std::size_t>(floats) * sizeof(float);
    scratch_bytes_ += aligned(bytes);
    return offset;
}

void Recurrent::lay_out_scratch() {
    const std::int64_t state = directions_ * batch_ * padded_;
    const bool resets = kind_ == CellKind::gru_gates;
    h_at_[0] = reserve(state);
    h_at_[1] = reserve(state);
    c_at_ = reserve(has_cell_ || resets ? state : 0);
    reset_at_ = reserve(resets ? state : 0);
    projected_at_ = reserve(items() * chunk_ * batch_ * gates_ * table_.lanes);
    start_at_ = reserve(items() * gates_ * table_.lanes);
    recurrent_bias_at_ = reserve(items() * table_.lanes);
    peepholes_at_ = reserve(has_cell_ ? items() * 3 * table_.lanes : 0);
    for (int i = 0; i < 2; ++i) {
        panels_at_[i] = reserve(packed_[i] ? 0 : items() * panel_size(i + 1));
    }
}

// --- packed matrices ---------------------------------------------------------------------------------

std::int64_t Recurrent::panel_size(int input) const {
    return (input == kW ? features_ : hidden_) * gates_ * table_.lanes;
}

std::vector<int> Recurrent::packed_inputs() const {
    std::vector<int> inputs;
    for (int i = 0; i < 2; ++i) {
        if (packed_[i]) {
            inputs.push_back(i + 1);
        }
    }
    return inputs;
}

std::size_t Recurrent::packed_bytes(int input) const {
    require_packed(input);
    return static_cast<std::size_t>(items() * panel_size(input)) * sizeof(float);
}

std::string Recurrent::packed_layout(int input) const {
    require_packed(input);
    const bool apart = input == kR && kind_ == CellKind::gru_gates;
    std::string text = "recurrent panels of ";
    text.append(std::to_string(gates_)).append(apart ? " (2, 1) x " : " x ").append(std::to_string(table_.lanes));
    text.append(", units ").append(std::to_string(hidden_));
    text.append(", depth ").append(std::to_string(input == kW ? features_ : hidden_));
    return text;
}

void Recurrent::pack(int input, const void* plain, void* packed) const {
    require_packed(input);
    for (std::int64_t item = 0; item < items(); ++item) {
        pack_item(input, item, static_cast<const float*>(plain), static_cast<float*>(packed));
    }
}

// Packs the panel of one block: [depth][gates][lanes]. For the r of a GRU that resets h before its product:
// [depth][2][lanes] for the first gates, then [depth][lanes] for the last one.
void Recurrent::pack_item(int input, std::int64_t item, const float* plain, float* packed) const {
    const std::int64_t depth = input == kW ? features_ : hidden_;
    const std::int64_t lanes = table_.lanes;
    const std::int64_t direction = item / blocks_;
    const std::int64_t column = item % blocks_ * lanes;
    const bool apart = input == kR && kind_ == CellKind::gru_gates;
    float* panel = packed + item * panel_size(input);
    for (std::int64_t gate = 0; gate < gates_; ++gate) {
        const bool last = apart && gate == 2;
        float* target = panel + (last ? depth * 2 : gate) * lanes;
        const std::int64_t step = (!apart ? gates_ : last ? 1 : 2) * lanes;
        for (std::int64_t lane = 0; lane < lanes; ++lane) {
            const std::int64_t unit = column + lane;
            const float* row = plain + ((direction * gates_ + gate) * hidden_ + unit) * depth;
            for (std::int64_t k = 0; k < depth; ++k) {
                target[k * step + lane] = unit < hidden_ ? row[k] : 0.0F;
            }
        }
    }
}

std::string Recurrent::implementation() const {
    const char* isa = table_.lanes == 16 ? "avx512" : table_.lanes == 8 ? "avx2" : "baseline";
    const char* owned = sharing_.by_sequence ? "sequences" : "units";
    std::string text = "graphkit:";
    text += isa;
    if (sharing_.parts > 1) {
        text.append(":").append(std::to_string(sharing_.parts)).append(" threads share ").append(owned);
    }
    return text;
}

// --- a run -------------------------------------------------------------------------------------------

// Number of groups of blocks that fill whole cache lines.
std::int64_t Recurrent::groups() const {
    const std::int64_t group = std::max<std::int64_t>(kLine / table_.lanes, 1);
    return (items() + group - 1) / group;
}

Recurrent::Part Recurrent::part_of(std::int64_t chunk) const {
    if (sharing_.by_sequence || sharing_.chunks == 1) {
        return {0, items(), batch_ * chunk / sharing_.chunks, batch_ * (chunk + 1) / sharing_.chunks};
    }
    const std::int64_t group = std::max<std::int64_t>(kLine / table_.lanes, 1);
    const auto border = [&](std::int64_t number) {
        return std::min(groups() * number / sharing_.chunks * group, items());
    };
    return {border(chunk), border(chunk + 1), 0, batch_};
}

// Arranges the operands that the steps read (except x), for a share of the (direction, block) pairs.
void Recurrent::prepare(const Run& run, std::int64_t chunk) const {
    const std::int64_t lanes = table_.lanes;
    const std::int64_t columns = gates_ * hidden_;
    const float* bias = run.in(kB);
    const float* peepholes = has_cell_ ? run.in(kPeepholes) : nullptr;
    for (std::int64_t item = items() * chunk / sharing_.chunks; item < items() * (chunk + 1) / sharing_.chunks;
         ++item) {
        for (const int input : {kW, kR}) {
            if (!packed_[input - 1]) {
                pack_item(input, item, static_cast<const float*>(run.inputs[input]), run.at(panels_at_[input - 1]));
            }
        }
        const std::int64_t direction = item / blocks_;
        const std::int64_t column = item % blocks_ * lanes;
        const std::int64_t units = std::min(lanes, hidden_ - column);
        // The last gate of a GRU adds its recurrent bias to the product with h, not to that with x.
        float* start = run.at(start_at_) + item * gates_ * lanes;
        float* recurrent = run.at(recurrent_bias_at_) + item * lanes;
        std::fill_n(start, gates_ * lanes, 0.0F);
        std::fill_n(recurrent, lanes, 0.0F);
        for (std::int64_t gate = 0; bias != nullptr && gate < gates_; ++gate) {
            const float* of_w = bias + direction * 2 * columns + gate * hidden_ + column;
            const float* of_r = of_w + columns;
            for (std::int64_t i = 0; i < units; ++i) {
                const bool apart = gates_ == 3 && gate == 2;
                start[gate * lanes + i] = apart ? of_w[i] : of_w[i] + of_r[i];
                if (apart) {
                    recurrent[i] = of_r[i];
                }
            }
        }
        for (std::int64_t gate = 0; peepholes != nullptr && gate < 3; ++gate) {
            float* target = run.at(peepholes_at_) + (item * 3 + gate) * lanes;
            std::fill_n(target, lanes, 0.0F);
            std::copy_n(peepholes + (direction * 3 + gate) * hidden_ + column, units, target);
        }
        const auto initial = [&](const float* from, float* to) {
            for (std::int64_t n = 0; n < batch_; ++n) {
                float* row = to + (direction * batch_ + n) * padded_ + column;
                std::fill_n(row, lanes, 0.0F);
                if (from != nullptr) {
                    const std::int64_t at = batch_first_ ? n * directions_ + direction : direction * batch_ + n;
                    std::copy_n(from + at * hidden_ + column, units, row);
                }
            }
        };
        initial(run.in(kInitialH), run.at(h_at_[0]));
        if (has_cell_) {
            initial(run.in(kInitialC), run.at(c_at_));
        }
    }
}

// Computes the input's product for as many steps as there is memory for, beginning with step `first` of the recurrence.
void Recurrent::project(const Run& run, const Part& part, std::int64_t first) const {
    const std::int64_t steps = std::min(chunk_, steps_ - first);
    const std::int64_t lanes = table_.lanes;
    const std::int64_t x_step = batch_first_ ? features_ : batch_ * features_;
    const std::int64_t sequences = part.batch_end - part.batch_begin;
    const auto* panels = packed_[0] ? run.in(kW) : run.at(panels_at_[0]);
    for (std::int64_t item = part.item_begin; item < part.item_end && sequences > 0; ++item) {
        const bool backwards = layer_.reversed[item / blocks_];
        const float* x = run.in(kX) + (backwards ? steps_ - 1 - first : first) * x_step;
        float* target = run.at(projected_at_) + item * chunk_ * batch_ * gates_ * lanes;
        std::int64_t done = 0;
        do {
            const ProjectionBlock block{
                .x = x + done,
                .x_step = backwards ? -x_step : x_step,
                .x_sequence = batch_first_ ? steps_ * features_ : features_,
                .batch_begin = part.batch_begin,
                .batch = sequences,
                .rows = steps * sequences,
                .depth = std::min(kDepth, features_ - done),
                .panel = panels + item * panel_size(kW) + done * gates_ * lanes,
                .start = done == 0 ? run.at(start_at_) + item * gates_ * lanes : nullptr,
                .target = target,
                .target_step = batch_ * gates_ * lanes,
                .vectors = static_cast<int>(gates_),
                .split = steps_ * batch_ * gates_ < 8 ? kMaxSplit : 1,
            };
            table_.project(block);
            done += kDepth;
        } while (done < features_);
    }
}

// The part of step `number` that computes one block of units; for a GRU, of one half of the step.
CellBlock Recurrent::block_of(const Run& run, const Part& part, std::int64_t number, CellKind kind,
                              std::int64_t item) const {
    const std::int64_t lanes = table_.lanes;
    const bool second = kind == CellKind::gru_output;
    const std::int64_t vectors = kind == CellKind::gru_gates ? 2 : second ? 1 : gates_;
    const auto* panels = packed_[1] ? run.in(kR) : run.at(panels_at_[1]);
    const std::int64_t direction = item / blocks_;
    const std::int64_t column = item % blocks_ * lanes;
    const std::int64_t time = layer_.reversed[direction] ? steps_ - 1 - number : number;
    const std::int64_t state = direction * batch_ * padded_;
    const float* h = run.at(h_at_[number % 2]) + state;
    const float* reset = run.at(reset_at_) + state;
    const std::int64_t y_sequence = batch_first_ ? steps_ * directions_ * hidden_ : hidden_;
    const std::int64_t y_first =
        (batch_first_ ? time * directions_ + direction : (time * directions_ + direction) * batch_) * hidden_;
    float* y = run.out(0);
    const std::int64_t saved = (direction * steps_ + time) * batch_;
    // Returns the place of this step in output `position`, a saved array; null if it is not used.
    const auto saving = [&](std::size_t position, std::int64_t columns) -> float* {
        float* to = saved_gates_ == 0 ? nullptr : run.out(position);
        return to == nullptr ? nullptr : to + saved * columns + column;
    };
    const std::size_t states = has_cell_ ? 2 : 1;
    return {
        .kind = kind,
        .part = CellPart::whole,
        .input_forget = input_forget_,
        .split = batch_ * vectors < 8 ? kMaxSplit : 1,
        .functions = {layer_.functions[direction][0], layer_.functions[direction][1], layer_.functions[direction][2]},
        .clip = clip_,
        .begin = part.batch_begin,
        .end = part.batch_end,
        .depth = hidden_,
        .panel = panels + item * panel_size(kR) + (second ? 2 * hidden_ * lanes : 0),
        .left = second ? reset : h,
        .projected = run.at(projected_at_) + (item * chunk_ + number % chunk_) * batch_ * gates_ * lanes,
        .projected_step = gates_ * lanes,
        .bias = run.at(recurrent_bias_at_) + item * lanes,
        .peepholes = has_cell_ && run.in(kPeepholes) != nullptr ? run.at(peepholes_at_) + item * 3 * lanes : nullptr,
        .state_step = padded_,
        .h = h + column,
        .h_next = run.at(h_at_[(number + 1) % 2]) + state + column,
        .c = run.at(c_at_) + state + column,
        .reset = run.at(reset_at_) + state + column,
        .y = y == nullptr ? nullptr : y + y_first + column,
        .y_step = y_sequence,
        .saved_gates = saving(1 + states, saved_gates_ * hidden_),
        .saved_gates_step = saved_gates_ * hidden_,
        .saved_h = saving(2 + states, hidden_),
        .saved_c = has_cell_ ? saving(3 + states, hidden_) : nullptr,
        .saved_step = hidden_,
        .units = std::min(lanes, hidden_ - column),
        .lengths = static_cast<const std::int32_t*>(run.inputs[kLengths]),
        .time = time,
    };
}

// Computes step `number` of the recurrence or, for a GRU, one half of it.
void Recurrent::step(const Run& run, const Part& part, std::int64_t number, CellKind kind) const {
    // Alternate the direction, so that a step finds in the cache the panels that the previous step used last.
    const auto item = [&](std::int64_t i) { return number % 2 == 0 ? i : part.item_begin + part.item_end - 1 - i; };
    const bool parts =
        (kind == CellKind::lstm || kind == CellKind::rnn) && part.batch_end - part.batch_begin <= kFewSequences;
    if (!parts) {
        for (std::int64_t i = part.item_begin; i < part.item_end; ++i) {
            table_.step(block_of(run, part, number, kind, item(i)));
        }
        return;
    }
    CellBlock blocks[kBlocksTogether];
    for (std::int64_t begin = part.item_begin; begin < part.item_end; begin += kBlocksTogether) {
        const std::int64_t count = std::min(kBlocksTogether, part.item_end - begin);
        for (std::int64_t i = 0; i < count; ++i) {
            blocks[i] = block_of(run, part, number, kind, item(begin + i));
            blocks[i].part = CellPart::sums;
            table_.step(blocks[i]);
        }
        for (std::int64_t i = 0; i < count; ++i) {
            blocks[i].part = CellPart::states;
            table_.step(blocks[i]);
        }
    }
}

void Recurrent::write_states(const Run& run, const Part& part) const {
    const auto write = [&](const float* from, float* to) {
        for (std::int64_t item = part.item_begin; to != nullptr && item < part.item_end; ++item) {
            const std::int64_t direction = item / blocks_;
            const std::int64_t column = item % blocks_ * table_.lanes;
            for (std::int64_t n = part.batch_begin; n < part.batch_end; ++n) {
                const std::int64_t at = batch_first_ ? n * directions_ + direction : direction * batch_ + n;
                std::copy_n(from + (direction * batch_ + n) * padded_ + column,
                            std::min(table_.lanes, hidden_ - column), to + at * hidden_ + column);
            }
        }
    };
    write(run.at(h_at_[steps_ % 2]), run.out(1));
    if (has_cell_) {
        write(run.at(c_at_), run.out(2));
    }
}

void Recurrent::run_sequences(const Run& run, const Part& part) const {
    for (std::int64_t direction = 0; direction < directions_; ++direction) {
        const Part one{direction * blocks_, (direction + 1) * blocks_, part.batch_begin, part.batch_end};
        for (std::int64_t number = 0; number < steps_; ++number) {
            if (number % chunk_ == 0) {
                project(run, one, number);
            }
            step(run, one, number, kind_);
            if (kind_ == CellKind::gru_gates) {
                step(run, one, number, CellKind::gru_output);
            }
        }
    }
    write_states(run, part);
}

void Recurrent::run_recurrence(const Run& run) const {
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
        phase([&](std::int64_t chunk) {
            const Part part = part_of(chunk);
            if (number % chunk_ == 0) {
                project(run, part, number);
            }
            step(run, part, number, kind_);
        });
        if (kind_ == CellKind::gru_gates) {
            phase([&](std::int64_t chunk) { step(run, part_of(chunk), number, CellKind::gru_output); });
        }
    }
    phase([&](std::int64_t chunk) { write_states(run, part_of(chunk)); });
}

void Recurrent::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const Run memory{inputs, outputs, scratch};
    run_recurrence(memory);
}

namespace {

// Makes the kernels of a layer: the sizes follow from the operands x and r.
class RecurrentFactory final : public KernelFactory {
  public:
    RecurrentFactory(std::string kind, RecurrentOptions options, int threads)
        : kind_(std::move(kind)), options_(std::move(options)), threads_(threads) {}

    std::unique_ptr<Kernel> make(const Shapes& inputs, const Shapes&) const override {
        return std::make_unique<Recurrent>(kind_, present(inputs, 0), present(inputs, 2).at(2), options_, threads_);
    }

  private:
    std::string kind_;
    RecurrentOptions options_;
    int threads_;
};

}  // namespace

static const RecipeKind recurrent_recipe(
    "Recurrent",
    +[](Recurrent* self, const std::string& kind, const Dims& x, std::int64_t hidden, std::string direction,
        GateFunctions activations, std::optional<float> clip, bool linear_before_reset, bool input_forget,
        bool batch_first, bool pack_w, bool pack_r, bool saves, int threads) {
        RecurrentOptions options = options_of(std::move(direction), std::move(activations), clip, linear_before_reset,
                                              input_forget, batch_first);
        options.pack_w = pack_w;
        options.pack_r = pack_r;
        options.saves = saves;
        new (self) Recurrent(kind, x, hidden, options, threads);
    });

static const RecipeKind recurrent_factory_recipe(
    "RecurrentFactory", +[](RecurrentFactory* self, std::string kind, std::string direction, GateFunctions activations,
                            std::optional<float> clip, bool linear_before_reset, bool input_forget, bool batch_first,
                            bool pack_w, bool pack_r, bool saves, int threads) {
        RecurrentOptions options = options_of(std::move(direction), std::move(activations), clip, linear_before_reset,
                                              input_forget, batch_first);
        options.pack_w = pack_w;
        options.pack_r = pack_r;
        options.saves = saves;
        new (self) RecurrentFactory(std::move(kind), std::move(options), threads);
    });

GRAPHKIT_BINDINGS(recurrent, "sized_kernels") {
    nb::class_<Recurrent, Kernel>(m, "Recurrent")
        .def("__init__", recurrent_recipe.init(), "kind"_a, "x"_a, "hidden"_a, nb::kw_only(), "direction"_a = "forward",
             "activations"_a = GateFunctions{}, "clip"_a.none() = nb::none(), "linear_before_reset"_a = false,
             "input_forget"_a = false, "batch_first"_a = false, "pack_w"_a = false, "pack_r"_a = false,
             "saves"_a = false, "threads"_a = 0);
    nb::class_<RecurrentFactory, KernelFactory>(m, "RecurrentFactory", "Makes the kernels of a layer for all sizes.")
        .def("__init__", recurrent_factory_recipe.init(), "kind"_a, nb::kw_only(), "direction"_a, "activations"_a,
             "clip"_a.none(), "linear_before_reset"_a, "input_forget"_a, "batch_first"_a, "pack_w"_a, "pack_r"_a,
             "saves"_a, "threads"_a);
}

}  // namespace graphkit
