#include "runtime/graph_sweeps.h"

#include "runtime/pointer_table.h"

namespace graphkit {

// Calls `found` for each node that `roots` depend on, after its operands. is_stopped: see `topological`. leaf: called
// for operands that no node computes.
//
// Nodes store the state that they have in the latest visit, so that it needs no table. Python code must not run during
// a visit, because it could begin another one.
template <class IsStopped, class Leaf, class Found>
void GraphSweeps::visit(const std::vector<PyObject*>& roots, const IsStopped& is_stopped, const Leaf& leaf,
                        const Found& found) const {
    const nb::object entered_state = new_object(&PyBaseObject_Type), done_state = new_object(&PyBaseObject_Type);
    PyObject* const entered = entered_state.ptr();
    PyObject* const done = done_state.ptr();
    const auto is_new = [&](PyObject* node) {
        PyObject* const state = state_of.peek(node);
        return state != entered && state != done;
    };
    std::vector<PyObject*> stack;
    for (PyObject* const root : roots) {
        PyObject* const last = producer(root);
        if (last == nullptr || is_stopped(root)) {
            continue;
        }
        stack.push_back(last);
        while (!stack.empty()) {
            PyObject* const node = stack.back();
            if (is_new(node)) {
                state_of.replace(node, entered);  // its operands are above it on the stack
                PyObject* const given = inputs(node);
                const std::size_t height = stack.size();
                for (Py_ssize_t i = PyTuple_GET_SIZE(given); i-- > 0;) {
                    PyObject* const operand = PyTuple_GET_ITEM(given, i);
                    PyObject* const needed = producer(operand);
                    if (needed == nullptr) {
                        leaf(operand);
                    } else if (is_new(needed) && !is_stopped(operand)) {
                        stack.push_back(needed);
                    }
                }
                if (stack.size() > height) {
                    continue;
                }
            }
            stack.pop_back();
            if (state_of.peek(node) != done) {
                state_of.replace(node, done);
                found(node);
            }
        }
    }
}

// Returns the nodes that `values` depend on, each after its operands; see `topological` in graph.py.
nb::list GraphSweeps::topological(const nb::list& values, const nb::set& stop) const {
    const bool stops = nb::len(stop) != 0;
    const auto is_stopped = [&](PyObject* value) { return stops && contains(stop, value); };
    std::vector<PyObject*> roots;
    for (const nb::handle root : values) {
        roots.push_back(root.ptr());
    }
    nb::list order;
    std::vector<PyObject*> nodes;
    visit(roots, is_stopped, [](PyObject*) {}, [&](PyObject* node) { nodes.push_back(node); });
    for (PyObject* const node : nodes) {
        require(PyList_Append(order.ptr(), node) == 0);
    }
    return order;
}

// Returns the nodes of a graph in topological order; None if Python must look for the error: an object that is not
// a value, an input that is listed twice or is missing, or an update that is not valid.
nb::object GraphSweeps::sound_nodes(const nb::tuple& inputs_given, const nb::tuple& outputs,
                                    const nb::tuple& updates) const {
    const auto is_value = [&](PyObject* object) { return Py_IS_TYPE(object, value_type()); };
    PointerTable known;
    for (const nb::handle input : inputs_given) {
        if (!is_value(input.ptr()) || !known.add(input.ptr()).second) {
            return nb::none();
        }
    }
    std::vector<PyObject*> roots;
    for (const nb::handle output : outputs) {
        roots.push_back(output.ptr());
    }
    PointerTable updated;
    for (const nb::handle update : updates) {
        if (!PyTuple_CheckExact(update.ptr()) || PyTuple_GET_SIZE(update.ptr()) != 2) {
            return nb::none();
        }
        PyObject* const state = PyTuple_GET_ITEM(update.ptr(), 0);
        PyObject* const result = PyTuple_GET_ITEM(update.ptr(), 1);
        if (!known.contains(state) || !is_value(result) || !updated.add(state).second) {
            return nb::none();
        }
        PyObject* const type = type_of.get(state);
        PyObject* const other = type_of.get(result);
        if (!is_same_kind(type, other)) {
            const int same = PyObject_RichCompareBool(type, other, Py_EQ);
            require(same >= 0);
            if (same == 0) {
                return nb::none();
            }
        }
        roots.push_back(result);
    }
    for (PyObject* const root : roots) {
        if (!is_value(root) || (producer(root) == nullptr && !known.contains(root))) {
            return nb::none();
        }
    }
    std::vector<PyObject*> nodes;
    bool is_sound = true;
    visit(
        roots, [](PyObject*) { return false; },
        [&](PyObject* operand) { is_sound &= operand == Py_None || known.contains(operand); },
        [&](PyObject* node) { nodes.push_back(node); });
    if (!is_sound) {
        return nb::none();
    }
    nb::object made = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(nodes.size())));
    require(made.is_valid());
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        PyTuple_SET_ITEM(made.ptr(), static_cast<Py_ssize_t>(i), Py_NewRef(nodes[i]));
    }
    return made;
}

// Returns the names of the operators of nodes.
nb::frozenset GraphSweeps::operators(const nb::tuple& nodes) const {
    nb::set names;
    PyObject* last = nullptr;
    for (const nb::handle node : nodes) {
        PyObject* const op = op_of.get(checked(node.ptr(), node_));
        if (op != last) {
            require(PySet_Add(names.ptr(), operators_.name(op).ptr()) == 0);
            last = op;
        }
    }
    return nb::frozenset(names);
}

// Returns the elements of `given`, with those that `table` maps to others replaced. Elements that are tuples are
// replaced in the same way.
nb::object GraphSweeps::replaced(const nb::tuple& given, const nb::dict& table) const {
    const auto count = static_cast<Py_ssize_t>(given.size());
    nb::object made = nb::steal(PyTuple_New(count));
    require(made.is_valid());
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject* const before = PyTuple_GET_ITEM(given.ptr(), i);
        if (PyTuple_CheckExact(before)) {
            const nb::object pair = replaced_inputs(before, table);
            PyTuple_SET_ITEM(made.ptr(), i, Py_NewRef(pair.is_valid() ? pair.ptr() : before));
            continue;
        }
        PyObject* const after = find(table, before);
        PyTuple_SET_ITEM(made.ptr(), i, Py_NewRef(after == nullptr ? before : after));
    }
    return made;
}

GRAPHKIT_BINDINGS(graph_sweeps) {
    nb::class_<GraphSweeps>(m, "GraphSweeps", "Sweeps over graphs; see graphkit.ir.sweeps.")
        .def(nb::init<nb::type_object, nb::type_object, nb::object, nb::object, nb::object, nb::type_object>(),
             "node"_a, "value"_a, "serials"_a, "same_type"_a, "no_attributes"_a, "tensor_type"_a)
        .def("topological", &GraphSweeps::topological, "values"_a, "stop"_a,
             nb::sig("def topological(self, values: list[typing.Any], stop: set[typing.Any]) -> list[typing.Any]"))
        .def("sound_nodes", &GraphSweeps::sound_nodes, "inputs"_a, "outputs"_a, "updates"_a,
             nb::sig("def sound_nodes(self, inputs: tuple[typing.Any, ...], outputs: tuple[typing.Any, ...], "
                     "updates: tuple[tuple[typing.Any, typing.Any], ...]) -> tuple[typing.Any, ...] | None"))
        .def("operators", &GraphSweeps::operators, "nodes"_a,
             nb::sig("def operators(self, nodes: tuple[typing.Any, ...]) -> frozenset[str]"))
        .def("replaced", &GraphSweeps::replaced, "given"_a, "table"_a,
             nb::sig("def replaced(self, given: tuple[typing.Any, ...], table: dict[typing.Any, typing.Any]) "
                     "-> tuple[typing.Any, ...]"))
        .def("copied", &GraphSweeps::copied, "node"_a, "inputs"_a,
             nb::sig("def copied(self, node: object, inputs: tuple[typing.Any, ...]) -> typing.Any"))
        .def("remade", &GraphSweeps::remade, "node"_a, "op"_a, "inputs"_a, "scope"_a, "types"_a,
             nb::sig("def remade(self, node: object, op: object, inputs: tuple[typing.Any, ...], scope: object, "
                     "types: tuple[typing.Any, ...]) -> typing.Any"))
        .def("copy_all", &GraphSweeps::copy_all, "nodes"_a, "scope"_a, "table"_a,
             nb::sig("def copy_all(self, nodes: tuple[typing.Any, ...], scope: object, "
                     "table: dict[typing.Any, typing.Any]) -> None"))
        .def("copy_until", &GraphSweeps::copy_until, "nodes"_a, "start"_a, "at"_a, "table"_a, "counts"_a.none(),
             "constant"_a.none() = nb::none(), "after"_a.none() = nb::none(), "among"_a.none() = nb::none(),
             nb::sig("def copy_until(self, nodes: tuple[typing.Any, ...], start: int, at: typing.AbstractSet[str], "
                     "table: dict[typing.Any, typing.Any], counts: dict[typing.Any, int] | None, "
                     "constant: type | None = None, after: typing.AbstractSet[str] | None = None, "
                     "among: typing.AbstractSet[str] | None = None) -> int"))
        .def("merge_until", &GraphSweeps::merge_until, "nodes"_a, "start"_a, "table"_a, "numbers"_a, "seen"_a,
             "number_of"_a, "merged"_a,
             nb::sig("def merge_until(self, nodes: tuple[typing.Any, ...], start: int, "
                     "table: dict[typing.Any, typing.Any], numbers: dict[typing.Any, int], "
                     "seen: dict[typing.Any, typing.Any], number_of: typing.Callable[..., int], merged: set[int]) "
                     "-> int"))
        .def("structure", &GraphSweeps::structure, "inputs"_a, "nodes"_a, "outputs"_a, "number_of"_a,
             nb::sig("def structure(self, inputs: tuple[typing.Any, ...], nodes: tuple[typing.Any, ...], "
                     "outputs: tuple[typing.Any, ...], number_of: typing.Callable[..., int]) "
                     "-> tuple[int | None, ...]"))
        .def("value_parts", &GraphSweeps::value_parts, "values"_a, "constant"_a, "number_of"_a,
             nb::sig("def value_parts(self, values: tuple[typing.Any, ...], constant: type, "
                     "number_of: typing.Callable[..., int]) -> list[int | None] | None"))
        .def("kernel_keys", &GraphSweeps::kernel_keys, "steps"_a, "root"_a, "known"_a, "used"_a, "number_of"_a,
             "identity"_a,
             nb::sig("def kernel_keys(self, steps: tuple[typing.Any, ...], root: dict[typing.Any, typing.Any], "
                     "known: dict[typing.Any, typing.Any], used: frozenset[typing.Any], "
                     "number_of: typing.Callable[..., typing.Any], identity: typing.Callable[..., int]) "
                     "-> list[tuple[typing.Any, ...]]"))
        .def("storages_read", &GraphSweeps::storages_read, "steps"_a, "root"_a,
             nb::sig("def storages_read(self, steps: tuple[typing.Any, ...], root: dict[typing.Any, typing.Any]) "
                     "-> list[list[typing.Any]]"))
        .def("inplace_pairs", &GraphSweeps::inplace_pairs, "steps"_a, "root"_a, "place"_a, "used"_a, "permitted"_a,
             "is_sized"_a, "has_equal_size"_a,
             nb::sig("def inplace_pairs(self, steps: tuple[typing.Any, ...], root: dict[typing.Any, typing.Any], "
                     "place: dict[typing.Any, str], used: frozenset[typing.Any], "
                     "permitted: list[typing.Sequence[tuple[int, int]]], is_sized: typing.Callable[..., bool], "
                     "has_equal_size: typing.Callable[..., bool]) -> list[list[tuple[typing.Any, typing.Any]]]"))
        .def("tasks", &GraphSweeps::tasks, "task_class"_a, "steps"_a, "storages"_a, "elements"_a, "extra"_a,
             "pairs"_a.none(), "scratch"_a, "numbers"_a, "place"_a,
             nb::sig("def tasks(self, task_class: type, steps: tuple[typing.Any, ...], "
                     "storages: list[list[typing.Any]], elements: dict[typing.Any, list[typing.Any]], "
                     "extra: dict[typing.Any, list[typing.Any]], "
                     "pairs: list[list[tuple[typing.Any, typing.Any]]] | None, scratch: list[int], "
                     "numbers: dict[typing.Any, int], place: dict[typing.Any, str]) -> list[typing.Any]"))
        .def("reader_dependencies", &GraphSweeps::reader_dependencies, "steps"_a, "storages"_a, "elements"_a, "used"_a,
             "donated"_a,
             nb::sig("def reader_dependencies(self, steps: tuple[typing.Any, ...], "
                     "storages: list[list[typing.Any]], elements: dict[typing.Any, list[typing.Any]], "
                     "used: frozenset[typing.Any], donated: dict[typing.Any, typing.Any]) "
                     "-> dict[typing.Any, list[typing.Any]]"))
        .def("bind_until", &GraphSweeps::bind_until, "nodes"_a, "start"_a, "at"_a, "table"_a, "known"_a, "number_of"_a,
             nb::sig("def bind_until(self, nodes: tuple[typing.Any, ...], start: int, at: typing.AbstractSet[str], "
                     "table: dict[typing.Any, typing.Any], known: dict[typing.Any, typing.Any], "
                     "number_of: typing.Callable[..., int | None]) -> int"));
}

}  // namespace graphkit
