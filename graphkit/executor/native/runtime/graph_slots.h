// Access to the attributes of Python's nodes and values, which are in __slots__.
#pragma once

#include "runtime/bindings.h"

#include <structmember.h>  // PyMemberDef, before Python 3.12

#include <string>

namespace graphkit {

// Throws the pending Python error if a call into Python failed.
inline void require(bool succeeded) {
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

    // Stores a new reference to `value`, and drops the one before if there is one.
    void replace(PyObject* object, PyObject* value) const {
        PyObject* const before = place(object);
        place(object) = Py_NewRef(value);
        Py_XDECREF(before);
    }

  private:
    PyObject*& place(PyObject* object) const {
        return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset_);
    }

    Py_ssize_t offset_ = 0;
};

// Returns a borrowed reference to the value of a key; null if it is not there.
inline PyObject* find(nb::handle table, PyObject* key) {
    PyObject* const found = PyDict_GetItemWithError(table.ptr(), key);
    require(found != nullptr || PyErr_Occurred() == nullptr);
    return found;
}

inline bool contains(nb::handle set, PyObject* key) {
    const int found = PySet_Contains(set.ptr(), key);
    require(found >= 0);
    return found == 1;
}

// Appends an object to a list.
inline void append(const nb::list& list, const nb::object& object) {
    require(PyList_Append(list.ptr(), object.ptr()) == 0);
}

// Calls `visit` for the nodes from `start` on until it returns false. Returns the position of that node; if there is
// none, the number of nodes.
template <class Visit>
Py_ssize_t visit_from(Py_ssize_t start, const nb::tuple& nodes, const Visit& visit) {
    const auto count = static_cast<Py_ssize_t>(nodes.size());
    if (start < 0 || start > count) {
        throw NativeError("a sweep of " + std::to_string(count) + " nodes cannot start at position " +
                          std::to_string(start));
    }
    Py_ssize_t position = start;
    while (position < count && visit(PyTuple_GET_ITEM(nodes.ptr(), position))) {
        ++position;
    }
    return position;
}

inline nb::object new_object(PyTypeObject* type) {
    nb::object made = nb::steal(type->tp_alloc(type, 0));
    require(made.is_valid());
    return made;
}

}  // namespace graphkit
