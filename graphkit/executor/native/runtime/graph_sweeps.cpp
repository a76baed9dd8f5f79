// Sweeps over Python's graphs. They compute the same as the functions of graphkit/ir/graph.py and
// graphkit/passes/core/sweep.py that call them.
#include <structmember.h>  // PyMemberDef, before Python 3.12

#include <unordered_map>

#include "runtime/bindings.h"

namespace graphkit {
namespace {

// Throws the pending Python error if a call into Python failed.
void require(bool succeeded) {
    if (!succeeded) {
        throw nb::python_error();
    }
}

// A slot of a class with __slots__: where its objects store the attribute.
class Slot {
  public:
    Slot(nb::handle cls, const char* name) {
        const nb::object found = nb::getattr(cls, name);
        if (Py_TYPE(found.ptr()) != &PyMemberDescr_Type) {
            throw NativeError(std::string(name) + " is not in __slots__");
        }
        offset_ = reinterpret_cast<PyMemberDescrObject*>(found.ptr())->d_member->offset;
    }

    // Returns a borrowed reference; null if the attribute is not set.
    PyObject* peek(PyObject* object) const { return place(object); }

    // Returns a borrowed reference. The attribute must be set.
    PyObject* get(PyObject* object) const {
        PyObject* const found = place(object);
        if (found == nullptr) {
            throw NativeError("an attribute of a graph's node or value is not set");
        }
        return found;
    }

    // Stores a new reference to `value`. The attribute must not be set yet.
    void set(PyObject* object, PyObject* value) const { place(object) = Py_NewRef(value); }

  private:
    PyObject*& place(PyObject* object) const {
        return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset_);
    }

    Py_ssize_t offset_ = 0;
};

nb::object new_object(PyTypeObject* type) {
    nb::object made = nb::steal(type->tp_alloc(type, 0));
    require(made.is_valid());
    return made;
}

class GraphSweeps {
  public:
    GraphSweeps(nb::type_object node, nb::type_object value, nb::object serials, nb::object same_type,
                nb::object no_attributes, nb::type_object tensor_type)
        : node_(std::move(node)),
          value_(std::move(value)),
          serials_(std::move(serials)),
          same_type_(std::move(same_type)),
          no_attributes_(std::move(no_attributes)),
          tensor_type_(std::move(tensor_type)),
          role_(nb::steal(PyUnicode_InternFromString("data"))),
          name_(nb::steal(PyUnicode_InternFromString("name"))),
          op_of(node_, "op"),
          inputs_of(node_, "inputs"),
          outputs_of(node_, "outputs"),
          node_name(node_, "name"),
          meta_of(node_, "meta"),
          scope_of(node_, "scope"),
          node_serial(node_, "serial"),
          producer_of(value_, "node"),
          index_of(value_, "index"),
          type_of(value_, "type"),
          value_name(value_, "name"),
          role_of(value_, "role"),
          attributes_of(value_, "attrs"),
          value_serial(value_, "serial"),
          elements_of(tensor_type_, "value"),
          number_of_type(tensor_type_, "_number") {}

    nb::list topological(const nb::list& values, const nb::set& stop) const;
    bool reads_only(const nb::tuple& nodes, const nb::set& known) const;
    nb::object copied(nb::handle node, const nb::tuple& inputs) const;
    void copy_all(const nb::tuple& nodes, nb::handle scope, const nb::dict& table) const;
    Py_ssize_t copy_until(const nb::tuple& nodes, Py_ssize_t start, nb::handle at, const nb::dict& table,
                          nb::handle counts, nb::handle constant, nb::handle after) const;
    Py_ssize_t merge_until(const nb::tuple& nodes, Py_ssize_t start, const nb::dict& table, const nb::dict& numbers,
                           const nb::dict& seen, const nb::callable& number_of) const;
    Py_ssize_t bind_until(const nb::tuple& nodes, Py_ssize_t start, nb::handle at, const nb::dict& table,
                          const nb::dict& known) const;

  private:
    PyObject* checked(PyObject* object, nb::handle type) const {
        if (!PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(type.ptr()))) {
            throw NativeError("a graph contains an object that is neither a node nor a value");
        }
        return object;
    }
    // Returns the node that computes a value; null for an absent value (None), and for an input.
    PyObject* producer(PyObject* value) const {
        if (value == Py_None) {
            return nullptr;
        }
        PyObject* const node = producer_of.get(checked(value, value_));
        return node == Py_None ? nullptr : node;
    }
    PyObject* inputs(PyObject* node) const {
        PyObject* const given = inputs_of.get(checked(node, node_));
        if (!PyTuple_Check(given)) {
            throw NativeError("the inputs of a node are not a tuple");
        }
        return given;
    }
    void set_serial(const Slot& slot, PyObject* object) const {
        const nb::object serial = nb::steal(PyIter_Next(serials_.ptr()));
        require(serial.is_valid());
        slot.set(object, serial.ptr());
    }
    bool has_same_types(PyObject* given, PyObject* before) const;
    nb::object replaced_inputs(PyObject* before, const nb::dict& table) const;
    nb::object with_inputs(PyObject* node, PyObject* given, PyObject* scope, PyObject* types = nullptr) const;
    void record_all(PyObject* node, PyObject* copy, const nb::dict& table, nb::handle counts) const;
    nb::object output(PyObject* before, PyObject* node, PyObject* type) const;
    nb::object bound_types(PyObject* node, PyObject* given, const nb::dict& known) const;
    bool is_among(PyObject* op, nb::handle names) const;
    bool reads_results_of(PyObject* given, nb::handle names) const;
    bool is_foldable(PyObject* node, PyObject* given, nb::handle constant) const;
    nb::object merge_key(PyObject* node, PyObject* given, const nb::dict& numbers, const nb::callable& number_of) const;
    nb::object merge_number(PyObject* op, const nb::dict& numbers, const nb::callable& number_of) const;
    void record(PyObject* before, PyObject* after, const nb::dict& table, nb::handle counts) const;

    nb::object node_, value_, serials_, same_type_, no_attributes_, tensor_type_, role_, name_;
    Slot op_of, inputs_of, outputs_of, node_name, meta_of, scope_of, node_serial;
    Slot producer_of, index_of, type_of, value_name, role_of, attributes_of, value_serial;
    Slot elements_of, number_of_type;
};

// Returns the nodes that `values` depend on, each after its operands; see `topological` in graph.py.
nb::list GraphSweeps::topological(const nb::list& values, const nb::set& stop) const {
    const bool stops = nb::len(stop) != 0;
    const auto is_stopped = [&](PyObject* value) {
        const int found = stops ? PySet_Contains(stop.ptr(), value) : 0;
        require(found >= 0);
        return found == 1;
    };
    nb::list order;
    std::unordered_map<PyObject*, bool> done;  // false: entered, its operands are above it on the stack
    std::vector<PyObject*> stack;
    for (const nb::handle root : values) {
        PyObject* const last = producer(root.ptr());
        if (last == nullptr || is_stopped(root.ptr())) {
            continue;
        }
        stack.push_back(last);
        while (!stack.empty()) {
            PyObject* const node = stack.back();
            const auto [state, entered] = done.try_emplace(node, false);
            if (entered) {
                PyObject* const given = inputs(node);
                const std::size_t height = stack.size();
                for (Py_ssize_t i = PyTuple_GET_SIZE(given); i-- > 0;) {
                    PyObject* const operand = PyTuple_GET_ITEM(given, i);
                    PyObject* const needed = producer(operand);
                    if (needed != nullptr && !done.contains(needed) && !is_stopped(operand)) {
                        stack.push_back(needed);
                    }
                }
                if (stack.size() > height) {
                    continue;
                }
            }
            stack.pop_back();
            if (!state->second) {
                state->second = true;
                require(PyList_Append(order.ptr(), node) == 0);
            }
        }
    }
    return order;
}

// Returns whether each operand is the result of a node, or in `known`.
bool GraphSweeps::reads_only(const nb::tuple& nodes, const nb::set& known) const {
    for (const nb::handle node : nodes) {
        PyObject* const given = inputs(node.ptr());
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i) {
            PyObject* const operand = PyTuple_GET_ITEM(given, i);
            if (operand != Py_None && producer(operand) == nullptr) {
                const int found = PySet_Contains(known.ptr(), operand);
                require(found >= 0);
                if (found == 0) {
                    return false;
                }
            }
        }
    }
    return true;
}

bool GraphSweeps::has_same_types(PyObject* given, PyObject* before) const {
    const Py_ssize_t count = PyTuple_GET_SIZE(given);
    if (count != PyTuple_GET_SIZE(before)) {
        return false;
    }
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject* const now = PyTuple_GET_ITEM(given, i);
        PyObject* const then = PyTuple_GET_ITEM(before, i);
        if (now == then) {
            continue;
        }
        if (now == Py_None || then == Py_None) {
            return false;
        }
        PyObject* const type = type_of.get(checked(now, value_));
        PyObject* const earlier = type_of.get(checked(then, value_));
        if (type != earlier && !nb::cast<bool>(same_type_(nb::handle(type), nb::handle(earlier)))) {
            return false;
        }
    }
    return true;
}

// Returns a copy of the value `before`: a result of `node` with this type.
nb::object GraphSweeps::output(PyObject* before, PyObject* node, PyObject* type) const {
    nb::object made = new_object(reinterpret_cast<PyTypeObject*>(value_.ptr()));
    PyObject* const value = made.ptr();
    producer_of.set(value, node);
    index_of.set(value, index_of.get(checked(before, value_)));
    type_of.set(value, type);
    value_name.set(value, value_name.get(before));
    role_of.set(value, role_.ptr());
    attributes_of.set(value, no_attributes_.ptr());
    set_serial(value_serial, value);
    return made;
}

// Returns the operands `before` with those that `table` maps to others replaced; no object if none is.
nb::object GraphSweeps::replaced_inputs(PyObject* before, const nb::dict& table) const {
    nb::object given;
    const Py_ssize_t operands = PyDict_GET_SIZE(table.ptr()) == 0 ? 0 : PyTuple_GET_SIZE(before);
    for (Py_ssize_t i = 0; i < operands; ++i) {
        PyObject* const found = PyDict_GetItemWithError(table.ptr(), PyTuple_GET_ITEM(before, i));
        if (found == nullptr) {
            require(PyErr_Occurred() == nullptr);
            continue;
        }
        if (!given.is_valid()) {
            given = nb::steal(PyTuple_New(operands));
            require(given.is_valid());
            for (Py_ssize_t j = 0; j < operands; ++j) {
                PyTuple_SET_ITEM(given.ptr(), j, Py_NewRef(PyTuple_GET_ITEM(before, j)));
            }
        }
        PyObject* const replaced = PyTuple_GET_ITEM(given.ptr(), i);
        PyTuple_SET_ITEM(given.ptr(), i, Py_NewRef(found));
        Py_DECREF(replaced);
    }
    return given;
}

// Returns the node with other operands, in a scope. types: a tuple with the types of its results; null if they stay the
// same.
nb::object GraphSweeps::with_inputs(PyObject* node, PyObject* given, PyObject* scope, PyObject* types) const {
    nb::object made = new_object(reinterpret_cast<PyTypeObject*>(node_.ptr()));
    PyObject* const copy = made.ptr();
    inputs_of.set(copy, given);
    for (const Slot* slot : {&op_of, &node_name, &meta_of}) {
        slot->set(copy, slot->get(node));
    }
    scope_of.set(copy, scope);
    set_serial(node_serial, copy);
    PyObject* const results = outputs_of.get(node);
    const Py_ssize_t count = PyTuple_GET_SIZE(results);
    const nb::object outputs = nb::steal(PyTuple_New(count));
    require(outputs.is_valid());
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject* const before = PyTuple_GET_ITEM(results, i);
        PyObject* const type = types == nullptr ? type_of.get(checked(before, value_)) : PyTuple_GET_ITEM(types, i);
        PyTuple_SET_ITEM(outputs.ptr(), i, output(before, copy, type).release().ptr());
    }
    outputs_of.set(copy, outputs.ptr());
    return made;
}

// Returns the node with these operands, or None if their types differ from those of its operands.
nb::object GraphSweeps::copied(nb::handle node, const nb::tuple& given) const {
    if (!has_same_types(given.ptr(), inputs(node.ptr()))) {
        return nb::none();
    }
    return with_inputs(node.ptr(), given.ptr(), scope_of.get(node.ptr()));
}

// Copies all nodes with the operands that `table` maps to others, and adds their outputs to `table`.
void GraphSweeps::copy_all(const nb::tuple& nodes, nb::handle scope, const nb::dict& table) const {
    for (const nb::handle node : nodes) {
        PyObject* const before = inputs(node.ptr());
        const nb::object given = replaced_inputs(before, table);
        const nb::object copy = with_inputs(node.ptr(), given.is_valid() ? given.ptr() : before, scope.ptr());
        record_all(node.ptr(), copy.ptr(), table, nb::none());
    }
}

// Records that `after` replaces `before`. counts: of their uses, or None.
void GraphSweeps::record(PyObject* before, PyObject* after, const nb::dict& table, nb::handle counts) const {
    require(PyDict_SetItem(table.ptr(), before, after) == 0);
    if (counts.is_none()) {
        return;
    }
    nb::object count = nb::borrow(PyDict_GetItemWithError(counts.ptr(), before));
    if (count.is_valid()) {
        require(PyDict_DelItem(counts.ptr(), before) == 0);
    } else {
        require(PyErr_Occurred() == nullptr);
        count = nb::int_(0);
    }
    require(PyDict_SetItem(counts.ptr(), after, count.ptr()) == 0);
}

// Records that the results of `copy` replace those of `node`.
void GraphSweeps::record_all(PyObject* node, PyObject* copy, const nb::dict& table, nb::handle counts) const {
    PyObject* const results = outputs_of.get(node);
    PyObject* const copies = outputs_of.get(copy);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(results); ++i) {
        record(PyTuple_GET_ITEM(results, i), PyTuple_GET_ITEM(copies, i), table, counts);
    }
}

// Returns whether the name of an operator is in a set.
bool GraphSweeps::is_among(PyObject* op, nb::handle names) const {
    const nb::object name = nb::steal(PyObject_GetAttr(op, name_.ptr()));
    require(name.is_valid());
    const int found = PySet_Contains(names.ptr(), name.ptr());
    require(found >= 0);
    return found == 1;
}

// Returns whether an operand is the result of an operator whose name is in a set.
bool GraphSweeps::reads_results_of(PyObject* given, nb::handle names) const {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i) {
        PyObject* const made = producer(PyTuple_GET_ITEM(given, i));
        if (made != nullptr && is_among(op_of.get(made), names)) {
            return true;
        }
    }
    return false;
}

// Returns whether a node has only constants as operands, or a result whose elements inference knows. Constants
// themselves are not foldable. constant: the class of their operators.
bool GraphSweeps::is_foldable(PyObject* node, PyObject* given, nb::handle constant) const {
    auto* const type = reinterpret_cast<PyTypeObject*>(constant.ptr());
    if (PyObject_TypeCheck(op_of.get(node), type)) {
        return false;
    }
    PyObject* const results = outputs_of.get(node);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(results); ++i) {
        PyObject* const kind = type_of.get(checked(PyTuple_GET_ITEM(results, i), value_));
        if (PyObject_TypeCheck(kind, reinterpret_cast<PyTypeObject*>(tensor_type_.ptr())) &&
            elements_of.get(kind) != Py_None) {
            return true;
        }
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i) {
        PyObject* const operand = PyTuple_GET_ITEM(given, i);
        PyObject* const made = producer(operand);
        if (operand != Py_None && (made == nullptr || !PyObject_TypeCheck(op_of.get(made), type))) {
            return false;
        }
    }
    return true;
}

// Copies the nodes from `start` on that read replaced values, and records the copies. Stops at the first node whose
// operator is in `at`, or whose operands have other types than before, and returns its position. constant: None, or
// the class of constants; then the sweep stops at foldable nodes, too. after: None, or names of operators; then the
// sweep stops at nodes that read their results, too.
Py_ssize_t GraphSweeps::copy_until(const nb::tuple& nodes, Py_ssize_t start, nb::handle at, const nb::dict& table,
                                   nb::handle counts, nb::handle constant, nb::handle after) const {
    const auto count = static_cast<Py_ssize_t>(nodes.size());
    for (Py_ssize_t position = start; position < count; ++position) {
        PyObject* const node = PyTuple_GET_ITEM(nodes.ptr(), position);
        PyObject* const before = inputs(node);
        if (is_among(op_of.get(node), at)) {
            return position;
        }
        const nb::object given = replaced_inputs(before, table);
        PyObject* const operands = given.is_valid() ? given.ptr() : before;
        if ((!constant.is_none() && is_foldable(node, operands, constant)) ||
            (!after.is_none() && reads_results_of(operands, after))) {
            return position;
        }
        if (!given.is_valid()) {
            continue;
        }
        if (!has_same_types(given.ptr(), before)) {
            return position;
        }
        const nb::object copy = with_inputs(node, given.ptr(), scope_of.get(node));
        record_all(node, copy.ptr(), table, counts);
    }
    return count;
}

// Returns the number of an operator in this sweep; 0 if Python must look at its nodes, because it is random or has
// subgraphs. Equal operators have equal numbers.
nb::object GraphSweeps::merge_number(PyObject* op, const nb::dict& numbers, const nb::callable& number_of) const {
    const nb::object operation = nb::borrow(op);
    const bool is_plain = nb::hasattr(operation, "_graphs") &&
                          PyObject_Size(nb::object(operation.attr("_graphs")).ptr()) == 0 &&
                          !nb::cast<bool>(operation.attr("random"));
    if (!is_plain) {
        return nb::int_(0);
    }
    // Operators with the same number are equal, and comparing numbers is faster. Others may be equal, too.
    const nb::int_ content(-nb::cast<Py_ssize_t>(number_of(operation)));
    nb::object number = nb::borrow(PyDict_GetItemWithError(numbers.ptr(), content.ptr()));
    if (!number.is_valid()) {
        require(PyErr_Occurred() == nullptr);
        number = nb::int_(PyDict_GET_SIZE(numbers.ptr()) + 1);
        number = nb::borrow(PyDict_SetDefault(numbers.ptr(), op, number.ptr()));
        require(number.is_valid());
        require(PyDict_SetItem(numbers.ptr(), content.ptr(), number.ptr()) == 0);
    }
    return number;
}

// Returns (number of the operator, operands): equal for equal nodes. No object if Python must look at the node.
//
// numbers: The numbers of operators: by their addresses, by the negative of `number_of`, and by the operators.
nb::object GraphSweeps::merge_key(PyObject* node, PyObject* given, const nb::dict& numbers,
                                  const nb::callable& number_of) const {
    PyObject* const op = op_of.get(node);
    const nb::object address = nb::steal(PyLong_FromVoidPtr(op));
    require(address.is_valid());
    nb::object number = nb::borrow(PyDict_GetItemWithError(numbers.ptr(), address.ptr()));
    if (!number.is_valid()) {
        require(PyErr_Occurred() == nullptr);
        number = merge_number(op, numbers, number_of);
        require(PyDict_SetItem(numbers.ptr(), address.ptr(), number.ptr()) == 0);
    }
    const bool is_plain = nb::cast<Py_ssize_t>(number) != 0;
    return is_plain ? nb::object(nb::make_tuple(number, nb::handle(given))) : nb::object();
}

// Copies the nodes from `start` on that read replaced values, and records the copies. `seen` contains the first node
// of each key. Stops at the first node that may be equal to an earlier one, that Python must look at (see `merge_key`),
// or whose operands have other types than before, and returns its position.
Py_ssize_t GraphSweeps::merge_until(const nb::tuple& nodes, Py_ssize_t start, const nb::dict& table,
                                    const nb::dict& numbers, const nb::dict& seen,
                                    const nb::callable& number_of) const {
    const auto count = static_cast<Py_ssize_t>(nodes.size());
    for (Py_ssize_t position = start; position < count; ++position) {
        PyObject* node = PyTuple_GET_ITEM(nodes.ptr(), position);
        PyObject* const before = inputs(node);
        const nb::object given = replaced_inputs(before, table);
        const nb::object key = merge_key(node, given.is_valid() ? given.ptr() : before, numbers, number_of);
        if (!key.is_valid()) {
            return position;
        }
        const int known = PyDict_Contains(seen.ptr(), key.ptr());
        require(known >= 0);
        if (known == 1 || (given.is_valid() && !has_same_types(given.ptr(), before))) {
            return position;
        }
        if (!given.is_valid()) {
            require(PyDict_SetItem(seen.ptr(), key.ptr(), node) == 0);
            continue;
        }
        const nb::object copy = with_inputs(node, given.ptr(), scope_of.get(node));
        record_all(node, copy.ptr(), table, nb::none());
        require(PyDict_SetItem(seen.ptr(), key.ptr(), copy.ptr()) == 0);
    }
    return count;
}

// Returns the types of the results of a node on other operands: the entry of `known` whose key is the number of the
// operator and those of the operands' types. No object if there is none.
nb::object GraphSweeps::bound_types(PyObject* node, PyObject* given, const nb::dict& known) const {
    const nb::object number = nb::getattr(nb::handle(op_of.get(node)), "_number", nb::handle());
    if (!number.is_valid()) {
        return {};
    }
    const Py_ssize_t count = PyTuple_GET_SIZE(given);
    const nb::object key = nb::steal(PyTuple_New(count + 1));
    require(key.is_valid());
    PyTuple_SET_ITEM(key.ptr(), 0, Py_NewRef(number.ptr()));
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject* const operand = PyTuple_GET_ITEM(given, i);
        PyObject* part = Py_None;
        if (operand != Py_None) {
            PyObject* const type = type_of.get(checked(operand, value_));
            const bool is_tensor = PyObject_TypeCheck(type, reinterpret_cast<PyTypeObject*>(tensor_type_.ptr()));
            part = is_tensor ? number_of_type.peek(type) : nullptr;
        }
        if (part == nullptr) {
            return {};
        }
        PyTuple_SET_ITEM(key.ptr(), i + 1, Py_NewRef(part));
    }
    nb::object types = nb::borrow(PyDict_GetItemWithError(known.ptr(), key.ptr()));
    require(types.is_valid() || PyErr_Occurred() == nullptr);
    if (types.is_valid() &&
        (!PyTuple_Check(types.ptr()) || PyTuple_GET_SIZE(types.ptr()) != PyTuple_GET_SIZE(outputs_of.get(node)))) {
        throw NativeError("a node does not have one known type for each result");
    }
    return types;
}

// Copies the nodes from `start` on that read replaced values, and records the copies. If the operands have other types
// than before, the results have the types that `known` contains (see `bound_types`). Stops at the first node whose
// operator is in `at`, or for which `known` has no types, and returns its position.
Py_ssize_t GraphSweeps::bind_until(const nb::tuple& nodes, Py_ssize_t start, nb::handle at, const nb::dict& table,
                                   const nb::dict& known) const {
    const auto count = static_cast<Py_ssize_t>(nodes.size());
    for (Py_ssize_t position = start; position < count; ++position) {
        PyObject* const node = PyTuple_GET_ITEM(nodes.ptr(), position);
        PyObject* const before = inputs(node);
        if (is_among(op_of.get(node), at)) {
            return position;
        }
        const nb::object given = replaced_inputs(before, table);
        if (!given.is_valid()) {
            continue;
        }
        nb::object types;
        if (!has_same_types(given.ptr(), before)) {
            types = bound_types(node, given.ptr(), known);
            if (!types.is_valid()) {
                return position;
            }
        }
        const nb::object copy = with_inputs(node, given.ptr(), scope_of.get(node), types.ptr());
        record_all(node, copy.ptr(), table, nb::none());
    }
    return count;
}

}  // namespace

GRAPHKIT_BINDINGS(graph_sweeps) {
    nb::class_<GraphSweeps>(m, "GraphSweeps", "Sweeps over graphs; see graphkit.ir.sweeps.")
        .def(nb::init<nb::type_object, nb::type_object, nb::object, nb::object, nb::object, nb::type_object>(),
             "node"_a, "value"_a, "serials"_a, "same_type"_a, "no_attributes"_a, "tensor_type"_a)
        .def("topological", &GraphSweeps::topological, "values"_a, "stop"_a,
             nb::sig("def topological(self, values: list[typing.Any], stop: set[typing.Any]) -> list[typing.Any]"))
        .def("reads_only", &GraphSweeps::reads_only, "nodes"_a, "known"_a,
             nb::sig("def reads_only(self, nodes: tuple[typing.Any, ...], known: set[typing.Any]) -> bool"))
        .def("copied", &GraphSweeps::copied, "node"_a, "inputs"_a,
             nb::sig("def copied(self, node: object, inputs: tuple[typing.Any, ...]) -> typing.Any"))
        .def("copy_all", &GraphSweeps::copy_all, "nodes"_a, "scope"_a, "table"_a,
             nb::sig("def copy_all(self, nodes: tuple[typing.Any, ...], scope: object, "
                     "table: dict[typing.Any, typing.Any]) -> None"))
        .def("copy_until", &GraphSweeps::copy_until, "nodes"_a, "start"_a, "at"_a, "table"_a, "counts"_a.none(),
             "constant"_a.none() = nb::none(), "after"_a.none() = nb::none(),
             nb::sig("def copy_until(self, nodes: tuple[typing.Any, ...], start: int, at: typing.AbstractSet[str], "
                     "table: dict[typing.Any, typing.Any], counts: dict[typing.Any, int] | None, "
                     "constant: type | None = None, after: typing.AbstractSet[str] | None = None) -> int"))
        .def("merge_until", &GraphSweeps::merge_until, "nodes"_a, "start"_a, "table"_a, "numbers"_a, "seen"_a,
             "number_of"_a,
             nb::sig("def merge_until(self, nodes: tuple[typing.Any, ...], start: int, "
                     "table: dict[typing.Any, typing.Any], numbers: dict[typing.Any, int], "
                     "seen: dict[typing.Any, typing.Any], number_of: typing.Callable[..., int]) -> int"))
        .def("bind_until", &GraphSweeps::bind_until, "nodes"_a, "start"_a, "at"_a, "table"_a, "known"_a,
             nb::sig("def bind_until(self, nodes: tuple[typing.Any, ...], start: int, at: typing.AbstractSet[str], "
                     "table: dict[typing.Any, typing.Any], known: dict[typing.Any, typing.Any]) -> int"));
}

}  // namespace graphkit
