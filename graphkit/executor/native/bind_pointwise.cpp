#include "runtime/bindings.h"
#include "kernels/pointwise/pointwise.h"
#include "kernels/table_update/table_update.h"

namespace graphkit {
namespace {

using Input = std::optional<std::tuple<Dims, std::string>>;
using Constant = std::tuple<std::string, nb::bytes>;
using Instruction = std::tuple<std::string, std::vector<int>, std::string>;
using Output = std::tuple<int, std::string>;

PointwiseSource source_of(std::string name, Dims shape, const std::vector<Input>& inputs,
                          const std::vector<Constant>& constants, const std::vector<Instruction>& instructions,
                          const std::vector<Output>& outputs) {
    PointwiseSource source;
    source.name = std::move(name);
    source.shape = std::move(shape);
    for (const Input& input : inputs) {
        if (input) {
            source.inputs.push_back({std::get<0>(*input), element_type(std::get<1>(*input))});
        } else {
            source.inputs.push_back({{}, ElementType::f32, true});
        }
    }
    for (const auto& [type, bytes] : constants) {
        source.constants.push_back({element_type(type), std::string(bytes.c_str(), bytes.size())});
    }
    for (const auto& [opcode, operands, type] : instructions) {
        source.instructions.push_back({opcode, operands, type.empty() ? ElementType::f32 : element_type(type)});
    }
    for (const auto& [value, type] : outputs) {
        source.outputs.push_back({value, element_type(type)});
    }
    return source;
}

}  // namespace

void bind_pointwise(nb::module_& m) {
    nb::class_<Pointwise, Kernel>(m, "Pointwise",
                                  "Elementwise operations in one pass over memory. Values are numbered: inputs (shape, "
                                  "element type), constants (element type, bytes of one element), results of "
                                  "instructions (opcode, operands, element type of a cast's result). Half floats are "
                                  "float32 values inside. Outputs are (value or -1, element type), all of one shape. "
                                  "`divisions` names the nodes that divide integers: a divisor 0 is an error.")
        .def(
            "__init__",
            [](Pointwise* self, std::string name, Dims shape, const std::vector<Input>& inputs,
               const std::vector<Constant>& constants, const std::vector<Instruction>& instructions,
               const std::vector<Output>& outputs, int threads, std::string divisions) {
                PointwiseSource source =
                    source_of(std::move(name), std::move(shape), inputs, constants, instructions, outputs);
                source.divisions = std::move(divisions);
                new (self) Pointwise(std::move(source), threads);
            },
            "name"_a, "shape"_a, nb::kw_only(), "inputs"_a.none(), "constants"_a, "instructions"_a, "outputs"_a,
            "threads"_a = 0, "divisions"_a = "")
        .def_prop_ro("registers", &Pointwise::registers, "Blocks of intermediate results that are alive at once.")
        .def_prop_ro("block", &Pointwise::block, "Elements of a block.");

    nb::class_<TableUpdate, Kernel>(m, "TableUpdate",
                                    "A pointwise update of a table of `size` rows, whose gradient is given by rows. "
                                    "`tile` updates some rows at a time, `rest` those that are left over.")
        .def(
            "__init__",
            [](TableUpdate* self, const Pointwise& tile, const Pointwise* rest, std::int64_t size, Dims indices,
               const std::string& index_dtype, int threads) {
                new (self) TableUpdate(tile, rest, size, std::move(indices), element_type(index_dtype), threads);
            },
            "tile"_a, "rest"_a.none(), nb::kw_only(), "size"_a, "indices"_a, "index_dtype"_a, "threads"_a,
            nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>());
}

}  // namespace graphkit
