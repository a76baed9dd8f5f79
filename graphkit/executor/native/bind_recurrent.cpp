#include "runtime/bindings.h"
#include "kernels/rnn/recurrent.h"
#include "kernels/rnn/recurrent_grad.h"

namespace graphkit {
namespace {

using Functions = std::vector<std::tuple<std::string, float, float>>;

RecurrentOptions options_of(std::string direction, Functions activations, std::optional<float> clip,
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

}  // namespace

void bind_recurrent(nb::module_& m) {
    nb::class_<Recurrent, Kernel>(m, "Recurrent")
        .def(
            "__init__",
            [](Recurrent* self, const std::string& kind, const Dims& x, std::int64_t hidden, std::string direction,
               Functions activations, std::optional<float> clip, bool linear_before_reset, bool input_forget,
               bool batch_first, bool pack_w, bool pack_r, bool saves, int threads) {
                RecurrentOptions options = options_of(std::move(direction), std::move(activations), clip,
                                                      linear_before_reset, input_forget, batch_first);
                options.pack_w = pack_w;
                options.pack_r = pack_r;
                options.saves = saves;
                new (self) Recurrent(kind, x, hidden, options, threads);
            },
            "kind"_a, "x"_a, "hidden"_a, nb::kw_only(), "direction"_a = "forward", "activations"_a = Functions{},
            "clip"_a.none() = nb::none(), "linear_before_reset"_a = false, "input_forget"_a = false,
            "batch_first"_a = false, "pack_w"_a = false, "pack_r"_a = false, "saves"_a = false, "threads"_a = 0);
    nb::class_<RecurrentGrad, Kernel>(m, "RecurrentGrad")
        .def(
            "__init__",
            [](RecurrentGrad* self, const std::string& kind, std::int64_t steps, std::int64_t batch, std::int64_t hidden,
               std::string direction, Functions activations, std::optional<float> clip, bool linear_before_reset,
               bool input_forget, bool batch_first, bool reads_gates, bool reads_other, int threads) {
                new (self) RecurrentGrad(kind, steps, batch, hidden,
                                         options_of(std::move(direction), std::move(activations), clip,
                                                    linear_before_reset, input_forget, batch_first),
                                         reads_gates, reads_other, threads);
            },
            "kind"_a, "steps"_a, "batch"_a, "hidden"_a, nb::kw_only(), "direction"_a = "forward",
            "activations"_a = Functions{}, "clip"_a.none() = nb::none(), "linear_before_reset"_a = false,
            "input_forget"_a = false, "batch_first"_a = false,
            "reads_gates"_a = true, "reads_other"_a = true, "threads"_a = 0);
}

}  // namespace graphkit
