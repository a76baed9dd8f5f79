// Makes the programs of a template for given sizes, without Python.
#include "runtime/sized_programs.h"

#include <nanobind/stl/shared_ptr.h>

#include <algorithm>

#include "runtime/array.h"

namespace graphkit {
namespace {

template <typename Struct, typename Tuple>
std::vector<Struct> structs_of(const std::vector<Tuple>& given) {
    std::vector<Struct> made;
    for (const Tuple& fields : given) {
        std::apply([&](const auto&... field) { made.push_back({field...}); }, fields);
    }
    return made;
}

// A kernel for the Python code that makes a structure.
struct NodeKernel {
    SizedKernelPtr sized;
    Needs needs;
};

}  // namespace

std::size_t NumbersHash::operator()(const std::vector<std::uint32_t>& numbers) const {
    std::size_t hash = numbers.size();
    for (const std::uint32_t number : numbers) {
        hash = (hash ^ number) * 0x9E3779B97F4A7C15U;
        hash ^= hash >> 29;
    }
    return hash;
}

SizedPrograms::SizedPrograms(std::size_t kept, SizeTable table,
                             std::vector<std::pair<std::size_t, std::size_t>> sources, std::vector<Places> inputs,
                             const std::vector<StepPlaces>& steps, std::vector<std::size_t> nodes,
                             const std::vector<Equal>& equal, const std::vector<Nonnegative>& nonnegative,
                             std::vector<std::pair<Places, std::size_t>> results)
    : kept_(kept),
      binding_({std::move(table), std::move(sources), std::move(inputs), structs_of<EqualSizes>(equal),
                structs_of<NonnegativeSize>(nonnegative)}),
      nodes_(std::move(nodes)),
      results_(std::move(results)) {
    for (const auto& [factory, mentioned, operands, outputs] : steps) {
        steps_.emplace_back(factory, mentioned, operands, outputs, binding_.table().symbols());
    }
}

std::optional<ProgramAt> SizedPrograms::make(const Shapes& shapes, std::optional<Dims> symbols,
                                             const nb::callable& kernel, const nb::callable& structured) {
    const bool are_given = symbols.has_value();
    if (!are_given && !(symbols = binding_.symbols_of(shapes))) {
        return std::nullopt;
    }
    const Dims sizes = binding_.sizes(*symbols);
    if (!are_given && binding_.misfit(shapes, sizes)) {
        return std::nullopt;
    }
    binding_.require_conditions(sizes);
    Kernels kernels = kernels_at(sizes, kernel);
    const Structure& structure = structure_of(kernels, sizes, structured);
    return program(structure, std::move(kernels), sizes);
}

nb::object SizedPrograms::at(const Shapes& shapes, std::optional<Dims> symbols, const nb::callable& kernel,
                             const nb::callable& structured) {
    std::optional<ProgramAt> made = make(shapes, std::move(symbols), kernel, structured);
    if (!made) {
        return nb::none();
    }
    nb::list results;
    for (const SizedResult& result : made->results) {
        results.append(nb::make_tuple(as_tuple(result.shape), result.bytes));
    }
    return nb::make_tuple(nb::cast(made->program.release(), nb::rv_policy::take_ownership), made->structure->operands,
                          made->arena_bytes, results);
}

std::vector<std::vector<Dims>> SizedPrograms::kept() const {
    std::vector<std::vector<Dims>> all;
    for (const SizedStep& step : steps_) {
        all.push_back(step.kept());
    }
    return all;
}

SizedPrograms::Kernels SizedPrograms::kernels_at(const Dims& sizes, const nb::callable& kernel) {
    Kernels made;
    made.distinct.reserve(steps_.size());
    for (std::size_t number = 0; number < steps_.size(); ++number) {
        made.distinct.push_back(
            steps_[number].at(sizes, kept_, needs_, [&] { return nb::object(kernel(number, sizes)); }));
    }
    made.nodes.reserve(nodes_.size());
    for (const std::size_t number : nodes_) {
        if (made.distinct.at(number) != nullptr) {
            made.nodes.push_back(number);
        }
    }
    return made;
}

const Structure& SizedPrograms::structure_of(const Kernels& kernels, const Dims& sizes,
                                             const nb::callable& structured) {
    std::vector<std::uint32_t> needs;
    needs.reserve(kernels.nodes.size());
    for (const std::size_t number : kernels.nodes) {
        needs.push_back(kernels.distinct[number]->needs);
    }
    if (const auto found = structures_.find(needs); found != structures_.end()) {
        return found->second;
    }
    std::vector<NodeKernel> given;
    for (const std::size_t number : kernels.nodes) {
        const SizedKernelPtr& kernel = kernels.distinct[number];
        given.push_back({kernel, needs_[kernel->needs]});
    }
    using Made = std::tuple<nb::object, std::vector<std::size_t>, nb::object, std::vector<std::int64_t>,
                            std::vector<std::tuple<int, Places, std::string>>, nb::object>;
    auto [program, order, requests, request_sizes, values, operands] =
        nb::cast<Made>(structured(std::move(given), sizes));
    nb::cast<BoundProgram*>(program)->complete();
    Structure made{program, order, requests, request_sizes, {}, operands};
    for (const auto& [external, elements, type] : values) {
        made.shape_values.push_back({external, {elements, element_type(type)}});
    }
    // Meanwhile, another thread may have made the same structure, which programs refer to.
    return structures_.emplace(std::move(needs), std::move(made)).first->second;
}

ProgramAt SizedPrograms::program(const Structure& structure, Kernels&& kernels, const Dims& sizes) const {
    const std::vector<std::int64_t> bytes =
        block_bytes(structure.request_sizes, sizes, [&](std::size_t node) { return kernels[node]->scratch_bytes; });
    ArenaLayout layout = nb::cast<const MemoryRequests*>(structure.requests)->lay_out(bytes);
    std::vector<const Kernel*> ordered;
    ordered.reserve(structure.order.size());
    for (const std::size_t index : structure.order) {
        ordered.push_back(kernels[index]->kernel);
    }
    const auto& resized = *nb::cast<const BoundProgram*>(structure.program);
    auto made = std::make_unique<BoundProgram>(resized, std::move(ordered), std::move(layout.offsets),
                                               static_cast<std::size_t>(layout.arena_bytes),
                                               resized.needs_sizes() ? sizes : Dims());
    made->sized_kernels = std::move(kernels.distinct);
    for (const auto& [external, elements] : structure.shape_values) {
        made->shape_values.emplace_back(external, elements.at(sizes));
    }
    std::vector<SizedResult> results;
    results.reserve(results_.size());
    for (const auto& [places, at] : results_) {
        results.push_back({sizes_at(places, sizes), sizes.at(at)});
    }
    return {std::move(made), &structure, layout.arena_bytes, std::move(results)};
}

GRAPHKIT_BINDINGS(sized_programs, "sized_kernels", "size_table", "arena_layout", "program") {
    nb::class_<NodeKernel>(m, "NodeKernel", "The kernel of a node for certain sizes, and its properties.")
        .def_prop_ro(
            "kernel", [](const NodeKernel& self) { return const_cast<Kernel*>(self.sized->kernel); },
            nb::rv_policy::reference_internal)
        .def_prop_ro("scratch_bytes", [](const NodeKernel& self) { return self.sized->scratch_bytes; })
        .def_prop_ro(
            "inplace", [](const NodeKernel& self) { return self.needs.inplace; },
            "Pairs (input, output) that may share memory.")
        .def_prop_ro(
            "packed", [](const NodeKernel& self) { return self.needs.packed; }, "Positions of the packed inputs.")
        .def_prop_ro(
            "layouts", [](const NodeKernel& self) { return self.needs.layouts; }, "The layout of each packed input.");
    nb::class_<SizedPrograms>(m, "SizedPrograms",
                              "The programs of a graph for given sizes. The most recently used kernels are cached.")
        .def(nb::init<std::size_t, SizeTable, std::vector<std::pair<std::size_t, std::size_t>>, std::vector<Places>,
                      const std::vector<SizedPrograms::StepPlaces>&, std::vector<std::size_t>,
                      const std::vector<SizedPrograms::Equal>&, const std::vector<SizedPrograms::Nonnegative>&,
                      std::vector<std::pair<Places, std::size_t>>>(),
             nb::kw_only(), "kept"_a, "table"_a, "sources"_a, "inputs"_a, "steps"_a, "nodes"_a, "equal"_a,
             "nonnegative"_a, "results"_a,
             nb::sig("def __init__(self, *, kept: int, table: SizeTable, sources: collections.abc.Sequence[tuple[int, "
                     "int]], inputs: collections.abc.Sequence[collections.abc.Sequence[int]], steps: "
                     "collections.abc.Sequence[tuple[KernelFactory | None, collections.abc.Sequence[int], "
                     "collections.abc.Sequence[collections.abc.Sequence[int] | None], "
                     "collections.abc.Sequence[collections.abc.Sequence[int]]]], nodes: "
                     "collections.abc.Sequence[int], equal: collections.abc.Sequence[tuple[int, int, str]], "
                     "nonnegative: collections.abc.Sequence[tuple[int, str]], results: "
                     "collections.abc.Sequence[tuple[collections.abc.Sequence[int], int]]) -> None"),
             "Shapes are lists of positions in `table`.\n\n"
             "kept: number of kernels that are kept for each step.\n"
             "sources: for each symbol of the table, an axis of an input with this size: (input, axis). Empty if "
             "there is none for some symbol.\n"
             "inputs: their shapes.\n"
             "steps: (factory or None, positions of the sizes on which its kernels depend, shapes of the operands, "
             "shapes of the results).\n"
             "nodes: the step of each node.\n"
             "equal: positions of sizes that must be equal, and the name of the node that requires it.\n"
             "nonnegative: positions of sizes that must not be negative, in the order of the graph, and the name of "
             "the first node whose results have them; empty for inputs.\n"
             "results: the shape, and the position of the bytes, of each result.")
        .def("at", &SizedPrograms::at, "shapes"_a, "symbols"_a.none(), "make"_a, "structured"_a,
             nb::sig("def at(self, shapes: collections.abc.Sequence[tuple[int, ...] | None], symbols: "
                     "collections.abc.Sequence[int] | None, make: collections.abc.Callable[[int, list[int]], object], "
                     "structured: collections.abc.Callable[[list[NodeKernel], list[int]], tuple[Program, "
                     "collections.abc.Sequence[int], MemoryRequests, collections.abc.Sequence[int], "
                     "collections.abc.Sequence[tuple[int, collections.abc.Sequence[int], str]], typing.Any]]) -> "
                     "tuple[Program, typing.Any, int, list[tuple[tuple[int, ...], int]]] | None"),
             "Return (program, operands, bytes of the arena, (shape, bytes) of each result), or None if the symbols "
             "do not follow from the shapes, or the shapes do not fit each other.\n\n"
             "shapes: of the inputs; None if unknown.\n"
             "symbols: the values of the symbols. If they are given, the shapes are not read.\n"
             "make: make(number, sizes) returns the kernel of a step whose factory makes none, or None if it needs "
             "none.\n"
             "structured: structured(kernels, sizes) returns the structure of a program with such kernels: (program, "
             "order of the nodes, memory requests, their sizes, shape values, operands). In the program, offsets in "
             "the arena are numbers of requests. Bytes of copies, and bytes, strides and iterations of loops, are "
             "positions in `table`. The size of a request is a position in `table`; for the working "
             "memory of node i, it is -1 - i. Shape values are (external memory, positions of the elements, dtype). "
             "`at` returns the operands unchanged.\n\n"
             "Raise Error if a size overflows or is negative, or if sizes that must be equal differ.")
        .def("kept", &SizedPrograms::kept,
             "Return, for each step, the sizes of the cached kernels, least recently used first.");
}

}  // namespace graphkit
