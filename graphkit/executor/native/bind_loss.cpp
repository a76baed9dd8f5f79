#include "runtime/bindings.h"
#include "kernels/loss/loss.h"

namespace graphkit {

void bind_loss(nb::module_& m) {
    nb::class_<ClassLoss, Kernel>(m, "ClassLoss")
        .def(nb::init<const Dims&, const std::string&, const std::string&, bool, const std::string&,
                      std::optional<std::int64_t>, bool, int>(),
             "scores"_a, "type"_a, "label_type"_a, "weights"_a, "reduction"_a, "ignore_index"_a.none(), "softmax"_a,
             "threads"_a = 0);
    nb::class_<SoftmaxCrossEntropyGrad, Kernel>(m, "SoftmaxCrossEntropyGrad")
        .def(nb::init<const Dims&, const std::string&, const std::string&, bool, const std::string&,
                      std::optional<std::int64_t>, int>(),
             "scores"_a, "type"_a, "label_type"_a, "weights"_a, "reduction"_a, "ignore_index"_a.none(),
             "threads"_a = 0);
    nb::class_<SoftmaxCrossEntropyWithGrad, Kernel>(m, "SoftmaxCrossEntropyWithGrad")
        .def(nb::init<const Dims&, const std::string&, const std::string&, bool, const std::string&,
                      std::optional<std::int64_t>, int>(),
             "scores"_a, "type"_a, "label_type"_a, "weights"_a, "reduction"_a, "ignore_index"_a.none(),
             "threads"_a = 0);
}

}  // namespace graphkit
