// Sweeps that look nodes up in tables: equal nodes, and the types of nodes on other operands.
#include "runtime/graph_sweeps.h"

namespace graphkit {

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

}  // namespace graphkit
