// One function for each family of kernels: adds its classes to the Python module.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "runtime/gil.h"
#include "runtime/kernel.h"
#include "runtime/threads.h"

namespace graphkit {

namespace nb = nanobind;
using namespace nb::literals;

using NoGil = nb::call_guard<WithoutGil>;

void bind_kernels(nb::module_& m);  // Kernel itself, before all others
void bind_program(nb::module_& m);
void bind_engine(nb::module_& m, const nb::object& error);  // `error` is the class of NativeError
void bind_pooling(nb::module_& m);
void bind_pointwise(nb::module_& m);
void bind_movement(nb::module_& m);
void bind_random(nb::module_& m);
void bind_reduce(nb::module_& m);
void bind_normalization(nb::module_& m);
void bind_loss(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_recurrent(nb::module_& m);
void bind_regions(nb::module_& m);
void bind_linear(nb::module_& m);
void bind_onednn(nb::module_& m);

}  // namespace graphkit
