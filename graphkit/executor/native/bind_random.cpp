#include "runtime/bindings.h"
#include "kernels/random/random.h"

namespace graphkit {
namespace {

using Text = const std::string&;
// The shape and element type of an operand; none when it is absent.
using Operand = std::optional<std::pair<Dims, std::string>>;

std::optional<TensorSpec> spec_of(const char* name, const Operand& operand) {
    if (!operand) {
        return std::nullopt;
    }
    return TensorSpec{name, operand->first, element_type(operand->second)};
}

}  // namespace

void bind_random(nb::module_& m) {
    nb::class_<PhiloxSource>(m, "PhiloxSource", "Where a node draws; has_operand: its last operand is (seed, step).")
        .def("__init__",
             [](PhiloxSource* self, std::uint64_t seed, std::uint64_t step, std::uint32_t stream, bool has_operand) {
                 new (self) PhiloxSource{seed, step, stream, has_operand};
             },
             "seed"_a, "step"_a, "stream"_a, "has_operand"_a);
    nb::class_<RandomFill, Kernel>(m, "RandomFill")
        .def("__init__",
             [](RandomFill* self, Text name, bool normal, double first, double second, const Operand& like, Dims y,
                Text dtype, const PhiloxSource& source, int threads) {
                 auto unread = spec_of("x", like);
                 if (unread) {
                     unread->optional = true;
                 }
                 new (self) RandomFill(name, normal ? RandomFill::Law::normal : RandomFill::Law::uniform, first, second,
                                       std::move(unread), std::move(y), element_type(dtype), source, threads);
             },
             "name"_a, "normal"_a, "first"_a, "second"_a, "like"_a.none(), "y"_a, "dtype"_a, "source"_a,
             "threads"_a = 0);
    nb::class_<Bernoulli, Kernel>(m, "Bernoulli")
        .def("__init__",
             [](Bernoulli* self, Dims x, Text x_dtype, Text dtype, const PhiloxSource& source, int threads) {
                 new (self) Bernoulli(std::move(x), element_type(x_dtype), element_type(dtype), source, threads);
             },
             "x"_a, "x_dtype"_a, "dtype"_a, "source"_a, "threads"_a = 0);
    nb::class_<Dropout, Kernel>(m, "Dropout")
        .def("__init__",
             [](Dropout* self, Dims x, Text dtype, const Operand& ratio, const Operand& training,
                const PhiloxSource& source, int threads) {
                 new (self) Dropout(std::move(x), element_type(dtype), spec_of("ratio", ratio),
                                    spec_of("training_mode", training), source, threads);
             },
             "x"_a, "dtype"_a, "ratio"_a.none(), "training"_a.none(), "source"_a, "threads"_a = 0);
    nb::class_<RngFoldIn, Kernel>(m, "RngFoldIn")
        .def("__init__",
             [](RngFoldIn* self, Dims index, Text index_dtype) {
                 new (self) RngFoldIn(std::move(index), element_type(index_dtype));
             },
             "index"_a, "index_dtype"_a);
}

}  // namespace graphkit
