#include "bindings.h"
#include "recurrent.h"

namespace graphkit {

void bind_recurrent(nb::module_& m) {
    const RecurrentOptions standard;
    nb::class_<Recurrent, Kernel>(m, "Recurrent")
        .def(
            "__init__",
            [](Recurrent* self, const std::string& kind, const Dims& x, std::int64_t hidden, std::string direction,
               std::vector<std::tuple<std::string, float, float>> activations, std::optional<float> clip,
               bool linear_before_reset, bool input_forget, bool batch_first, bool pack_w, bool pack_r, int threads) {
                RecurrentOptions options;
                options.direction = std::move(direction);
                options.activations = std::move(activations);
                options.clip = clip.value_or(options.clip);
                options.linear_before_reset = linear_before_reset;
                options.input_forget = input_forget;
                options.batch_first = batch_first;
                options.pack_w = pack_w;
                options.pack_r = pack_r;
                new (self) Recurrent(kind, x, hidden, options, threads);
            },
            "kind"_a, "x"_a, "hidden"_a, nb::kw_only(), "direction"_a = "forward",
            "activations"_a = standard.activations, "clip"_a.none() = nb::none(), "linear_before_reset"_a = false,
            "input_forget"_a = false, "batch_first"_a = false, "pack_w"_a = false, "pack_r"_a = false, "threads"_a = 0);
}

}  // namespace graphkit
