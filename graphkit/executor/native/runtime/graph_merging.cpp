// Sweeps that look nodes up in tables: equal nodes, and the types of nodes on other operands.
#include "runtime/graph_sweeps.h"
#include "runtime/pointer_table.h"

namespace graphkit {

// Returns the number of an operator in this sweep; 0 if Python must look at its nodes, because it is random or has
// subgraphs that are not in `merged`. Equal operators have equal numbers.
nb::object GraphSweeps::merge_number(PyObject* op, const nb::dict& numbers, const nb::callable& number_of,
                                     const nb::set& merged) const {
    const nb::object operation = nb::borrow(op);
    if (!nb::hasattr(operation, "_graphs") || nb::cast<bool>(operation.attr("random"))) {
        return nb::int_(0);
    }
    const nb::object own = number_of(operation);
    const bool has_graphs = PyObject_Size(nb::object(operation.attr("_graphs")).ptr()) != 0;
    if (has_graphs && !contains(merged, own.ptr())) {
        return nb::int_(0);
    }
    // Operators with the same number are equal, and comparing numbers is faster. Others may be equal, too. Operators
    // with subgraphs count as equal only if these are the same objects, so that the nodes inside keep their names.
    const nb::int_ content(-nb::cast<Py_ssize_t>(own));
    nb::object number = has_graphs ? nb::object() : nb::borrow(find(numbers, content.ptr()));
    if (!number.is_valid()) {
        number = nb::int_(PyDict_GET_SIZE(numbers.ptr()) + 1);
        number = nb::borrow(PyDict_SetDefault(numbers.ptr(), op, number.ptr()));
        require(number.is_valid());
        if (!has_graphs) {
            require(PyDict_SetItem(numbers.ptr(), content.ptr(), number.ptr()) == 0);
        }
    }
    return number;
}

// Returns (number of the operator, operands): equal for equal nodes. No object if Python must look at the node.
//
// numbers: The numbers of operators: by their addresses, by the negative of `number_of`, and by the operators.
nb::object GraphSweeps::merge_key(PyObject* node, PyObject* given, const nb::dict& numbers,
                                  const nb::callable& number_of, const nb::set& merged) const {
    PyObject* const op = op_of.get(node);
    const nb::object address = nb::steal(PyLong_FromVoidPtr(op));
    require(address.is_valid());
    nb::object number = nb::borrow(find(numbers, address.ptr()));
    if (!number.is_valid()) {
        number = merge_number(op, numbers, number_of, merged);
        require(PyDict_SetItem(numbers.ptr(), address.ptr(), number.ptr()) == 0);
    }
    const bool is_plain = nb::cast<Py_ssize_t>(number) != 0;
    return is_plain ? nb::object(nb::make_tuple(number, nb::handle(given))) : nb::object();
}

// Copies the nodes from `start` on that read replaced values, and records the copies. `seen` contains the first node
// of each key, which replaces equal ones. Stops at the first node that has attributes, operands and an equal node, that
// Python must look at (see `merge_key`), or whose operands have other types than before, and returns its position.
Py_ssize_t GraphSweeps::merge_until(const nb::tuple& nodes, Py_ssize_t start, const nb::dict& table,
                                    const nb::dict& numbers, const nb::dict& seen, const nb::callable& number_of,
                                    const nb::set& merged) const {
    return visit_from(start, nodes, [&](PyObject* node) {
        PyObject* const before = inputs(node);
        const nb::object given = replaced_inputs(before, table);
        const nb::object key = merge_key(node, given.is_valid() ? given.ptr() : before, numbers, number_of, merged);
        if (!key.is_valid()) {
            return false;
        }
        PyObject* const equal = find(seen, key.ptr());
        if (given.is_valid() && !has_same_types(given.ptr(), before)) {
            return false;
        }
        if (equal != nullptr) {
            // Nodes that have operands and attributes may be in different groups.
            if (meta_of.get(node) != no_attributes_.ptr() && PyTuple_GET_SIZE(before) != 0) {
                return false;
            }
            record_all(node, equal, table, nb::none());
            return true;
        }
        if (!given.is_valid()) {
            require(PyDict_SetItem(seen.ptr(), key.ptr(), node) == 0);
            return true;
        }
        const nb::object copy = with_inputs(node, given.ptr(), scope_of.get(node));
        record_all(node, copy.ptr(), table, nb::none());
        require(PyDict_SetItem(seen.ptr(), key.ptr(), copy.ptr()) == 0);
        return true;
    });
}

// Returns what determines a graph of numbered operators, but for its names: the numbers of its types and operators, and
// the places of operands among its values. number_of: returns the number of an operator that has none yet.
nb::tuple GraphSweeps::structure(const nb::tuple& given, const nb::tuple& nodes, const nb::tuple& outputs,
                                 const nb::callable& number_of) const {
    PointerTable places;
    nb::list parts;
    const auto define = [&](PyObject* value) {
        *places.add(value).first = static_cast<std::uint32_t>(places.size() - 1);
        append(parts, type_number(type_of.get(checked(value, value_))));
    };
    const auto refer = [&](PyObject* value) {
        if (value == Py_None) {
            append(parts, nb::none());
            return;
        }
        if (!places.contains(value)) {
            throw NativeError("a node reads a value that comes later");
        }
        append(parts, nb::int_(*places.add(value).first));
    };
    for (const nb::handle value : given) {
        define(value.ptr());
    }
    for (const nb::handle node : nodes) {
        PyObject* const operands = inputs(node.ptr());
        PyObject* const results = outputs_of.get(node.ptr());
        const nb::handle op = op_of.get(node.ptr());
        const nb::object number = operators_.number(op.ptr());
        append(parts, nb::none());  // ends the previous node
        append(parts, number.is_valid() ? number : number_of(op));
        append(parts, nb::int_(PyTuple_GET_SIZE(operands)));
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(operands); ++i) {
            refer(PyTuple_GET_ITEM(operands, i));
        }
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(results); ++i) {
            define(PyTuple_GET_ITEM(results, i));
        }
    }
    append(parts, nb::none());
    for (const nb::handle value : outputs) {
        refer(value.ptr());
    }
    return nb::tuple(parts);
}

// Returns the places, types and constants of values; see `Templates.parts`. None if a value is not a tensor.
//
// constant: the class of constants. number_of: returns the number of such an operator.
nb::object GraphSweeps::value_parts(const nb::tuple& values, nb::handle constant, const nb::callable& number_of) const {
    PointerTable places;
    nb::list parts;
    for (const nb::handle value : values) {
        if (value.is_none()) {
            append(parts, nb::none());
            continue;
        }
        PyObject* const type = type_of.get(checked(value.ptr(), value_));
        if (!is_tensor(type)) {
            return nb::none();
        }
        const auto [place, is_new] = places.add(value.ptr());
        if (is_new) {
            *place = static_cast<std::uint32_t>(places.size() - 1);
        }
        append(parts, nb::int_(*place));
        append(parts, type_number(type));
        PyObject* const made = producer(value.ptr());
        const bool is_constant =
            made != nullptr &&
            PyObject_TypeCheck(op_of.get(made), reinterpret_cast<PyTypeObject*>(constant.ptr())) != 0;
        append(parts, is_constant ? number_of(nb::handle(op_of.get(made))) : nb::none());
    }
    return parts;
}

// Returns the types of the results of a node on other operands: the entry of `known` whose key is the number of the
// operator and those of the operands' types. No object if there is none. number_of: returns the number of an operator
// that has none yet, or None.
nb::object GraphSweeps::bound_types(PyObject* node, PyObject* given, const nb::dict& known,
                                    const nb::callable& number_of) const {
    const nb::handle op = op_of.get(node);
    nb::object number = operators_.number(op.ptr());
    if (!number.is_valid()) {
        number = number_of(op);
    }
    if (number.is_none()) {
        return {};
    }
    const Py_ssize_t count = PyTuple_GET_SIZE(given);
    const nb::object key = nb::steal(PyTuple_New(count + 1));
    require(key.is_valid());
    PyTuple_SET_ITEM(key.ptr(), 0, Py_NewRef(number.ptr()));
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject* const operand = PyTuple_GET_ITEM(given, i);
        nb::object part = nb::none();
        if (operand != Py_None) {
            PyObject* const type = type_of.get(checked(operand, value_));
            if (!is_tensor(type)) {
                return {};
            }
            part = type_number(type);
        }
        PyTuple_SET_ITEM(key.ptr(), i + 1, part.release().ptr());
    }
    nb::object types = nb::borrow(find(known, key.ptr()));
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
                                   const nb::dict& known, const nb::callable& number_of) const {
    return visit_from(start, nodes, [&](PyObject* node) {
        PyObject* const before = inputs(node);
        if (is_among(op_of.get(node), at)) {
            return false;
        }
        const nb::object given = replaced_inputs(before, table);
        if (!given.is_valid()) {
            return true;
        }
        nb::object types;
        if (!has_same_types(given.ptr(), before)) {
            types = bound_types(node, given.ptr(), known, number_of);
            if (!types.is_valid()) {
                return false;
            }
        }
        const nb::object copy = with_inputs(node, given.ptr(), scope_of.get(node), types.ptr());
        record_all(node, copy.ptr(), table, nb::none());
        return true;
    });
}

}  // namespace graphkit
