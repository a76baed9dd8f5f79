// Dicts of class probabilities, as classifiers return them: one for each row of a matrix, from labels to elements.
#include "runtime/array.h"

namespace graphkit {
namespace {

// Throws the pending Python error if a call into Python failed.
void require(bool succeeded) {
    if (!succeeded) {
        throw nb::python_error();
    }
}

nb::list maps_of_rows(const nb::tuple& keys, nb::handle rows) {
    const Operand matrix = open_operand(rows, "rows", ElementType::f32);
    const auto columns = static_cast<std::int64_t>(keys.size());
    if (matrix.shape.size() != 2 || matrix.shape[1] != columns) {
        throw NativeError(std::to_string(columns) + " labels for an array " + to_string(matrix.shape));
    }
    nb::list maps = nb::steal<nb::list>(PyList_New(matrix.shape[0]));
    require(maps.is_valid());
    const float* element = matrix.as<float>();
    for (std::int64_t row = 0; row < matrix.shape[0]; ++row) {
        PyObject* const map = PyDict_New();
        require(map != nullptr);
        require(PyList_SetItem(maps.ptr(), row, map) == 0);  // the list owns the dict from here on
        for (std::int64_t column = 0; column < columns; ++column) {
            const nb::object value = nb::steal(PyFloat_FromDouble(static_cast<double>(*element++)));
            require(value.is_valid());
            require(PyDict_SetItem(map, PyTuple_GetItem(keys.ptr(), column), value.ptr()) == 0);
        }
    }
    return maps;
}

}  // namespace

GRAPHKIT_BINDINGS(maps) {
    m.def(
        "maps_of_rows", &maps_of_rows, "keys"_a, "rows"_a,
        nb::sig(
            "def maps_of_rows(keys: tuple[int, ...] | tuple[str, ...], rows: object) -> list[dict[int | str, float]]"),
        "Return a dict for each row of a float32 array [N, K], from the K keys to the elements.");
}

}  // namespace graphkit
