// numpy's arrays as kernels see them: read through numpy's own structures, without a call.
#pragma once

#include "runtime/bindings.h"
#include "runtime/data_dependent.h"

namespace graphkit {

struct Array {
    void* data;
    std::size_t bytes;
};

// A C-contiguous, aligned array in native byte order; raises TypeError or ValueError, which say `name`, for any other
// object. The array must stay alive while the memory is used.
Array open_array(nb::handle object, const char* name, bool writable);

struct Objects {
    PyObject** data;
    std::size_t count;
};

// The same of an array of Python objects. The interpreter must be held while they are used.
Objects open_objects(nb::handle object, const char* name, bool writable);

// Raises TypeError for an object that is not a string.
void require_string(PyObject* object);

// The same, checked against what a kernel expects.
void* open_array(nb::handle object, const TensorSpec& spec, const Kernel& kernel, bool writable);

// An array of that element type with its shape.
Operand open_operand(nb::handle object, const char* name, ElementType type);

}  // namespace graphkit
