#include "bindings.h"
#include "pooling.h"

namespace graphkit {

void bind_pooling(nb::module_& m) {
    nb::class_<PoolWindow>(m, "PoolWindow")
        .def(nb::init<Dims, Dims, Dims, Dims, Dims>(), "kernel"_a, "strides"_a, "dilations"_a, "pads_begin"_a,
             "pads_end"_a);
    nb::class_<MaxPool, Kernel>(m, "MaxPool")
        .def(nb::init<Dims, Dims, const PoolWindow&, bool, int>(), "x"_a, "y"_a, "window"_a, "column_major"_a = false,
             "threads"_a = 0);
    nb::class_<MaxPoolGrad, Kernel>(m, "MaxPoolGrad").def(nb::init<Dims, Dims, int>(), "dy"_a, "dx"_a, "threads"_a = 0);
    nb::class_<AveragePool, Kernel>(m, "AveragePool")
        .def(nb::init<Dims, Dims, const PoolWindow&, bool, int>(), "x"_a, "y"_a, "window"_a, "include_pad"_a = false,
             "threads"_a = 0);
    nb::class_<AveragePoolGrad, Kernel>(m, "AveragePoolGrad")
        .def(nb::init<Dims, Dims, const PoolWindow&, bool, int>(), "dy"_a, "dx"_a, "window"_a, "include_pad"_a = false,
             "threads"_a = 0);
}

}  // namespace graphkit
