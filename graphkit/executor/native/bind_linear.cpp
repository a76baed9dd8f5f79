#include "runtime/bindings.h"
#include "kernels/linalg/linear_systems.h"

namespace graphkit {
namespace {

Elimination::Goal goal_of(const std::string& name) {
    using Goal = Elimination::Goal;
    if (name == "solve") {
        return Goal::solve;
    }
    if (name == "inverse") {
        return Goal::inverse;
    }
    if (name == "det") {
        return Goal::det;
    }
    if (name == "slogdet") {
        return Goal::slogdet;
    }
    throw NativeError("no elimination is for " + name);
}

}  // namespace

void bind_linear(nb::module_& m) {
    using Text = const std::string&;
    nb::class_<Elimination, Kernel>(m, "Elimination")
        .def(
            "__init__",
            [](Elimination* self, Text goal, const Dims& a, const std::optional<Dims>& b, Text dtype, int threads) {
                new (self) Elimination(goal_of(goal), a, b.value_or(a), element_type(dtype), threads);
            },
            "goal"_a, "a"_a, "b"_a.none(), "dtype"_a, "threads"_a = 0);
    nb::class_<Cholesky, Kernel>(m, "Cholesky")
        .def(
            "__init__",
            [](Cholesky* self, const Dims& a, bool lower, Text dtype, int threads) {
                new (self) Cholesky(a, lower, element_type(dtype), threads);
            },
            "a"_a, "lower"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<TriangularSystem, Kernel>(m, "TriangularSystem")
        .def(
            "__init__",
            [](TriangularSystem* self, const Dims& a, const Dims& b, bool transpose, bool rightside, bool lower,
               double alpha, Text dtype, int threads) {
                new (self) TriangularSystem(a, b, transpose, rightside, lower, alpha, element_type(dtype), threads);
            },
            "a"_a, "b"_a, nb::kw_only(), "transpose"_a, "rightside"_a, "lower"_a, "alpha"_a, "dtype"_a,
            "threads"_a = 0);
}

}  // namespace graphkit
