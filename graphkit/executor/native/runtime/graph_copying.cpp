// Copies of nodes with other operands: the sweeps of most passes.
#include "runtime/graph_sweeps.h"

namespace graphkit {

// Returns whether two types are known to be equal, with known elements: they are one object, or have the same number.
bool GraphSweeps::is_same_kind(PyObject* a, PyObject* b) const {
    return a == b || (is_tensor(a) && is_tensor(b) && type_number(a).equal(type_number(b)));
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
        // If equal types have different numbers, which is rare, they are only inferred again.
        const bool is_same = is_tensor(type) && is_tensor(earlier)
                                 ? is_same_kind(type, earlier)
                                 : nb::cast<bool>(same_type_(nb::handle(type), nb::handle(earlier)));
        if (!is_same) {
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
        PyObject* const found = find(table, PyTuple_GET_ITEM(before, i));
        if (found == nullptr) {
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
// same. op: the operator; null if it stays the same.
nb::object GraphSweeps::with_inputs(PyObject* node, PyObject* given, PyObject* scope, PyObject* types,
                                    PyObject* op) const {
    nb::object made = new_object(reinterpret_cast<PyTypeObject*>(node_.ptr()));
    PyObject* const copy = made.ptr();
    inputs_of.set(copy, given);
    op_of.set(copy, op == nullptr ? op_of.get(node) : op);
    for (const Slot* slot : {&node_name, &meta_of}) {
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

// Returns the node with another operator, operands and types of its results, in a scope.
nb::object GraphSweeps::remade(nb::handle node, nb::handle op, const nb::tuple& given, nb::handle scope,
                               const nb::tuple& types) const {
    inputs(node.ptr());  // checks the class
    if (static_cast<Py_ssize_t>(types.size()) != PyTuple_GET_SIZE(outputs_of.get(node.ptr()))) {
        throw NativeError("a node does not have one type for each result");
    }
    return with_inputs(node.ptr(), given.ptr(), scope.ptr(), types.ptr(), op.ptr());
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
    nb::object count = nb::borrow(find(counts, before));
    if (count.is_valid()) {
        require(PyDict_DelItem(counts.ptr(), before) == 0);
    } else {
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
    return contains(names, operators_.name(op).ptr());
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
// sweep stops at nodes that read their results, too, if their own operator is in `among` (None: all are).
Py_ssize_t GraphSweeps::copy_until(const nb::tuple& nodes, Py_ssize_t start, nb::handle at, const nb::dict& table,
                                   nb::handle counts, nb::handle constant, nb::handle after, nb::handle among) const {
    return visit_from(start, nodes, [&](PyObject* node) {
        PyObject* const before = inputs(node);
        if (is_among(op_of.get(node), at)) {
            return false;
        }
        const nb::object given = replaced_inputs(before, table);
        PyObject* const operands = given.is_valid() ? given.ptr() : before;
        if ((!constant.is_none() && is_foldable(node, operands, constant)) ||
            (!after.is_none() && (among.is_none() || is_among(op_of.get(node), among)) &&
             reads_results_of(operands, after))) {
            return false;
        }
        if (!given.is_valid()) {
            return true;
        }
        if (!has_same_types(given.ptr(), before)) {
            return false;
        }
        const nb::object copy = with_inputs(node, given.ptr(), scope_of.get(node));
        record_all(node, copy.ptr(), table, counts);
        return true;
    });
}

}  // namespace graphkit
