// The names and numbers of operators, which it finds through their classes. Looking up the attributes takes longer.
#pragma once

#include "runtime/graph_slots.h"
#include "runtime/pointer_table.h"

namespace graphkit {

class OperatorClasses {
  public:
    // Returns the attribute `name` of an operator.
    nb::object name(PyObject* op) {
        const Class* const found = find(Py_TYPE(op));
        if (found != nullptr && found->name.is_valid()) {
            return found->name;
        }
        nb::object name = nb::steal(PyObject_GetAttr(op, name_.ptr()));
        require(name.is_valid());
        return name;
    }

    // Returns the attribute `_number` of an operator; no object if it has none.
    nb::object number(PyObject* op) {
        const Class* const found = find(Py_TYPE(op));
        return found != nullptr && found->number.has_value() ? nb::borrow(found->number->peek(op))
                                                             : nb::getattr(op, number_, nb::handle());
    }

  private:
    // The table is not extended beyond this number of classes, which it keeps alive.
    static constexpr std::size_t kMost = 4096;

    struct Class {
        nb::object type;
        nb::object name;             // not valid if operators of the class may have names of their own
        std::optional<Slot> number;  // nothing if `_number` is not in __slots__
    };

    const Class* find(PyTypeObject* type) {
        if (places_.contains(type)) {
            return &classes_[*places_.add(type).first];
        }
        if (classes_.size() == kMost) {
            return nullptr;
        }
        Class made{nb::borrow(nb::handle(reinterpret_cast<PyObject*>(type))), {}, {}};
        const nb::object fields = nb::getattr(made.type, "fields", nb::handle());
        const nb::object name = nb::getattr(made.type, name_, nb::handle());
        // Attributes of operators are the fields of their class, and those of the class itself.
        if (fields.is_valid() && name.is_valid() && PyUnicode_CheckExact(name.ptr()) != 0) {
            const int own = PySequence_Contains(fields.ptr(), name_.ptr());
            require(own >= 0);
            if (own == 0) {
                made.name = name;
            }
        }
        const nb::object slot = nb::getattr(made.type, number_, nb::handle());
        if (slot.is_valid() && Py_IS_TYPE(slot.ptr(), &PyMemberDescr_Type)) {
            made.number.emplace(made.type, "_number");
        }
        classes_.push_back(std::move(made));
        *places_.add(type).first = static_cast<std::uint32_t>(classes_.size() - 1);
        return &classes_.back();
    }

    nb::object name_ = nb::steal(PyUnicode_InternFromString("name"));
    nb::object number_ = nb::steal(PyUnicode_InternFromString("_number"));
    PointerTable places_;
    std::vector<Class> classes_;
};

}  // namespace graphkit
