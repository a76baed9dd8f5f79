// Access to numpy arrays through numpy's own C structures, without calls into Python.
#pragma once

#include "runtime/bindings.h"
#include "runtime/data_dependent.h"
#include "runtime/strided.h"

namespace graphkit {

struct Array {
    void* data;
    std::size_t bytes;
};

// Returns the memory of a C-contiguous, aligned array in native byte order. Raises TypeError or ValueError for any
// other object; the message contains `name`. The array must stay alive while the memory is used.
Array open_array(nb::handle object, const char* name, bool writable);

// Returns the bytes of one element. `dtype` must be a numpy.dtype.
std::size_t item_size(nb::handle dtype);

nb::tuple as_tuple(const Dims& dims);

// Returns a new array, uninitialised. Raises the errors of numpy.empty. `shape`: a tuple.
nb::object new_array(nb::handle shape, nb::handle dtype);

// The fields of an array of numpy's own class, not of a subclass. `dims` and `dtype` are borrowed.
struct PlainArray {
    void* data;
    const std::int64_t* dims;
    std::size_t rank;
    PyObject* dtype;
    bool readable;  // whether it is C-contiguous and aligned
};

// Returns no value for any other object.
std::optional<PlainArray> plain_array(PyObject* object);

struct Objects {
    PyObject** data;
    std::size_t count;
};

// Like open_array, for an array of Python objects. The GIL must be held while the objects are used.
Objects open_objects(nb::handle object, const char* name, bool writable);

// Raises TypeError for an object that is not a string.
void require_string(PyObject* object);

// Like open_array, and checks the shape and the element type against `spec`, an operand of `kernel`.
void* open_array(nb::handle object, const TensorSpec& spec, const Kernel& kernel, bool writable);

// Returns the memory and the shape of an array, which must have this element type.
Operand open_operand(nb::handle object, const char* name, ElementType type);

// Returns the memory of an aligned array in native byte order, with any strides. Raises like open_array.
StridedArray open_strided(nb::handle object, const char* name, bool writable);

}  // namespace graphkit
