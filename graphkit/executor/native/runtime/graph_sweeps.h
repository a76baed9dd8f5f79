// Sweeps over Python's graphs. They compute the same as the functions of graphkit/ir/graph.py,
// graphkit/passes/core/sweep.py and graphkit/executor/memory/plan_graph.py that call them.
#pragma once

#include "runtime/graph_slots.h"
#include "runtime/operator_classes.h"

namespace graphkit {

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
          op_of(node_, "op"),
          inputs_of(node_, "inputs"),
          outputs_of(node_, "outputs"),
          node_name(node_, "name"),
          meta_of(node_, "meta"),
          scope_of(node_, "scope"),
          node_serial(node_, "serial"),
          state_of(node_, "_state"),
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
    nb::object sound_nodes(const nb::tuple& inputs_given, const nb::tuple& outputs, const nb::tuple& updates) const;
    nb::frozenset operators(const nb::tuple& nodes) const;
    nb::object replaced(const nb::tuple& given, const nb::dict& table) const;
    nb::object remade(nb::handle node, nb::handle op, const nb::tuple& given, nb::handle scope,
                      const nb::tuple& types) const;
    nb::object copied(nb::handle node, const nb::tuple& inputs) const;
    void copy_all(const nb::tuple& nodes, nb::handle scope, const nb::dict& table) const;
    Py_ssize_t copy_until(const nb::tuple& nodes, Py_ssize_t start, nb::handle at, const nb::dict& table,
                          nb::handle counts, nb::handle constant, nb::handle after, nb::handle among) const;
    Py_ssize_t merge_until(const nb::tuple& nodes, Py_ssize_t start, const nb::dict& table, const nb::dict& numbers,
                           const nb::dict& seen, const nb::callable& number_of, const nb::set& merged) const;
    nb::tuple structure(const nb::tuple& given, const nb::tuple& nodes, const nb::tuple& outputs,
                        const nb::callable& number_of) const;
    Py_ssize_t bind_until(const nb::tuple& nodes, Py_ssize_t start, nb::handle at, const nb::dict& table,
                          const nb::dict& known, const nb::callable& number_of) const;
    nb::object value_parts(const nb::tuple& values, nb::handle constant, const nb::callable& number_of) const;
    nb::list kernel_keys(const nb::tuple& steps, const nb::dict& root, const nb::dict& known, const nb::frozenset& used,
                         const nb::callable& number_of, const nb::callable& identity) const;
    nb::list storages_read(const nb::tuple& steps, const nb::dict& root) const;
    nb::list inplace_pairs(const nb::tuple& steps, const nb::dict& root, const nb::dict& place,
                           const nb::frozenset& used, const nb::list& permitted, const nb::callable& is_sized,
                           const nb::callable& has_equal_size) const;
    nb::list tasks(nb::handle task_class, const nb::tuple& steps, const nb::list& storages, const nb::dict& elements,
                   const nb::dict& extra, nb::handle pairs, const nb::list& scratch, const nb::dict& numbers,
                   const nb::dict& place) const;
    nb::dict reader_dependencies(const nb::tuple& steps, const nb::list& storages, const nb::dict& elements,
                                 const nb::frozenset& used, const nb::dict& donated) const;

  private:
    class TypeFacts;
    // Fields of a Placement, the names of two kinds of memory, and `_has_equal_size`.
    struct Places {
        nb::handle root;
        nb::handle place;
        nb::handle used;
        nb::handle arena;
        nb::handle parameter;
        nb::handle has_equal_size;
    };

    template <class IsStopped, class Leaf, class Found>
    void visit(const std::vector<PyObject*>& roots, const IsStopped& is_stopped, const Leaf& leaf,
               const Found& found) const;
    PyTypeObject* value_type() const { return reinterpret_cast<PyTypeObject*>(value_.ptr()); }
    bool is_tensor(PyObject* type) const {
        return PyObject_TypeCheck(type, reinterpret_cast<PyTypeObject*>(tensor_type_.ptr())) != 0;
    }
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
    nb::object type_number(PyObject* type) const;
    bool is_same_kind(PyObject* a, PyObject* b) const;
    nb::object kernel_key(PyObject* step, const nb::dict& root, const nb::dict& known, const nb::frozenset& used,
                          const nb::callable& number_of, const nb::callable& identity) const;
    nb::list inplace_pairs_of(PyObject* step, const nb::handle& permitted, const Places& places,
                              TypeFacts& is_sized) const;
    bool has_same_types(PyObject* given, PyObject* before) const;
    nb::object replaced_inputs(PyObject* before, const nb::dict& table) const;
    nb::object with_inputs(PyObject* node, PyObject* given, PyObject* scope, PyObject* types = nullptr,
                           PyObject* op = nullptr) const;
    void record_all(PyObject* node, PyObject* copy, const nb::dict& table, nb::handle counts) const;
    nb::object output(PyObject* before, PyObject* node, PyObject* type) const;
    nb::object bound_types(PyObject* node, PyObject* given, const nb::dict& known, const nb::callable& number_of) const;
    bool is_among(PyObject* op, nb::handle names) const;
    bool reads_results_of(PyObject* given, nb::handle names) const;
    bool is_foldable(PyObject* node, PyObject* given, nb::handle constant) const;
    nb::object merge_key(PyObject* node, PyObject* given, const nb::dict& numbers, const nb::callable& number_of,
                         const nb::set& merged) const;
    nb::object merge_number(PyObject* op, const nb::dict& numbers, const nb::callable& number_of,
                            const nb::set& merged) const;
    void record(PyObject* before, PyObject* after, const nb::dict& table, nb::handle counts) const;

    mutable OperatorClasses operators_;
    nb::object node_, value_, serials_, same_type_, no_attributes_, tensor_type_, role_;
    Slot op_of, inputs_of, outputs_of, node_name, meta_of, scope_of, node_serial, state_of;
    Slot producer_of, index_of, type_of, value_name, role_of, attributes_of, value_serial;
    Slot elements_of, number_of_type;
};

}  // namespace graphkit
