#include "kernels/attention/attention.h"
#include "runtime/bindings.h"

namespace graphkit {

void bind_attention(nb::module_& m) {
    nb::class_<Attention, Kernel>(m, "Attention")
        .def(nb::init<const Dims&, const Dims&, const Dims&, const std::optional<Dims>&, bool, double, double, bool,
                      bool, bool, int>(),
             "q"_a, "k"_a, "v"_a, "mask"_a.none() = nb::none(), "boolean_mask"_a = false, "scale"_a = 1.0,
             "hidden_score"_a = 0.0, "causal"_a = false, "heads_last"_a = false, "output_heads_last"_a = false,
             "threads"_a = 0);
}

}  // namespace graphkit
