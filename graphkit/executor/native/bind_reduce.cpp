#include "runtime/bindings.h"
#include "kernels/reduce/reduce.h"
#include "kernels/sorting/sorting.h"
#include "kernels/softmax/softmax.h"

namespace graphkit {

void bind_reduce(nb::module_& m) {
    nb::class_<Reduce, Kernel>(m, "Reduce")
        .def(nb::init<const std::string&, const Dims&, const Dims&, const Dims&, const std::string&, int>(), "op"_a,
             "x"_a, "axes"_a, "y"_a, "type"_a, "threads"_a = 0);
    nb::class_<Softmax, Kernel>(m, "Softmax")
        .def(nb::init<const Dims&, std::int64_t, const std::string&, bool, int>(), "shape"_a, "axis"_a, "type"_a,
             "log"_a = false, "threads"_a = 0);
    nb::class_<ArgExtreme, Kernel>(m, "ArgExtreme")
        .def(nb::init<const Dims&, std::int64_t, const Dims&, const std::string&, bool, bool, int>(), "x"_a, "axis"_a,
             "y"_a, "type"_a, "largest"_a = true, "last"_a = false, "threads"_a = 0);
    nb::class_<TopK, Kernel>(m, "TopK")
        .def(nb::init<const Dims&, std::int64_t, std::int64_t, const std::string&, bool, int>(), "x"_a, "axis"_a, "k"_a,
             "type"_a, "largest"_a = true, "threads"_a = 0);
}

}  // namespace graphkit
