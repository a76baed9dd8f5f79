#include "runtime/array.h"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#include <numpy/ndarraytypes.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <string>

namespace graphkit {
namespace {

// Whether an element type matches the kind, letter and size of a numpy descriptor. bfloat16 is the type of ml_dtypes.
bool fits(ElementType type, char kind, char letter, npy_intp size) {
    const auto wanted = static_cast<npy_intp>(size_of(type));
    switch (type) {
        case ElementType::f32:
        case ElementType::f64:
        case ElementType::f16:
            return kind == 'f' && size == wanted;
        case ElementType::bf16:
            return letter == 'E' && size == 2;
        case ElementType::boolean:
            return kind == 'b';
        case ElementType::u8:
        case ElementType::u16:
        case ElementType::u32:
        case ElementType::u64:
            return kind == 'u' && size == wanted;
        default:
            return kind == 'i' && size == wanted;
    }
}

PyTypeObject* array_type() {
    static PyTypeObject* const type =
        reinterpret_cast<PyTypeObject*>(nb::object(nb::module_::import_("numpy").attr("ndarray")).release().ptr());
    return type;
}

const PyArrayObject_fields* fields(nb::handle object, const char* name, bool writable,
                                   int layout = NPY_ARRAY_C_CONTIGUOUS) {
    if (!PyObject_TypeCheck(object.ptr(), array_type())) {
        const std::string message =
            std::string("'") + name + "' must be an array, not " + nb::type_name(object.type()).c_str();
        throw nb::type_error(message.c_str());
    }
    const auto* array = reinterpret_cast<const PyArrayObject_fields*>(object.ptr());
    const int needed = layout | NPY_ARRAY_ALIGNED | (writable ? NPY_ARRAY_WRITEABLE : 0);
    if ((array->flags & needed) != needed || array->descr->byteorder == '>') {
        const std::string message = std::string("'") + name + "' must be " +
                                    (layout == 0 ? "an aligned" : "a contiguous") + (writable ? ", writable" : "") +
                                    " array";
        throw nb::value_error(message.c_str());
    }
    return array;
}

// Whether arrays of these two shapes have the same memory layout: the shapes may differ in where their axes of size 1
// are.
bool lies_like(Dims a, Dims b) {
    const bool same_rank = a.size() == b.size();
    std::erase(a, 1);
    std::erase(b, 1);
    return same_rank && a == b;
}

}  // namespace

Array open_array(nb::handle object, const char* name, bool writable) {
    const PyArrayObject_fields* array = fields(object, name, writable);
    std::size_t bytes = static_cast<std::size_t>(array->descr->elsize);
    for (int i = 0; i < array->nd; ++i) {
        bytes *= static_cast<std::size_t>(array->dimensions[i]);
    }
    return {array->data, bytes};
}

std::size_t item_size(nb::handle dtype) {
    return static_cast<std::size_t>(reinterpret_cast<const PyArray_Descr*>(dtype.ptr())->elsize);
}

nb::tuple as_tuple(const Dims& dims) {
    nb::object made = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(dims.size())));
    for (std::size_t i = 0; i < dims.size(); ++i) {
        PyTuple_SET_ITEM(made.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(dims[i]));
    }
    return nb::borrow<nb::tuple>(made);
}

nb::object new_array(nb::handle shape, nb::handle dtype) {
    static PyObject* const empty = nb::object(nb::module_::import_("numpy").attr("empty")).release().ptr();
    PyObject* const arguments[] = {shape.ptr(), dtype.ptr()};
    PyObject* const made = PyObject_Vectorcall(empty, arguments, 2, nullptr);
    if (made == nullptr) {
        throw nb::python_error();
    }
    return nb::steal(made);
}

std::optional<PlainArray> plain_array(PyObject* object) {
    static_assert(sizeof(npy_intp) == sizeof(std::int64_t));
    if (Py_TYPE(object) != array_type()) {
        return std::nullopt;
    }
    const auto* array = reinterpret_cast<const PyArrayObject_fields*>(object);
    constexpr int kReadable = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
    return PlainArray{array->data, reinterpret_cast<const std::int64_t*>(array->dimensions),
                      static_cast<std::size_t>(array->nd), reinterpret_cast<PyObject*>(array->descr),
                      (array->flags & kReadable) == kReadable};
}

Objects open_objects(nb::handle object, const char* name, bool writable) {
    const Array array = open_array(object, name, writable);
    if (reinterpret_cast<const PyArrayObject_fields*>(object.ptr())->descr->type_num != NPY_OBJECT) {
        throw nb::type_error((std::string("'") + name + "' is not an array of Python objects").c_str());
    }
    return {static_cast<PyObject**>(array.data), array.bytes / sizeof(PyObject*)};
}

void require_string(PyObject* object) {
    if (object == nullptr || !PyUnicode_Check(object)) {
        const char* const type = object == nullptr ? "nothing" : Py_TYPE(object)->tp_name;
        throw nb::type_error((std::string("a string tensor has an element of type ") + type).c_str());
    }
}

void* open_array(nb::handle object, const TensorSpec& spec, const Kernel& kernel, bool writable) {
    const PyArrayObject_fields* array = fields(object, (kernel.describe() + ": " + spec.name).c_str(), writable);
    const PyArray_Descr* descriptor = array->descr;
    const bool shape_fits = lies_like(Dims(array->dimensions, array->dimensions + array->nd), spec.shape);
    if (!shape_fits || !fits(spec.type, descriptor->kind, descriptor->type, descriptor->elsize)) {
        const Dims shape(array->dimensions, array->dimensions + array->nd);
        const std::string message =
            kernel.describe() + ": '" + spec.name + "' got an array of " +
            nb::cast<std::string>(nb::str(nb::handle(reinterpret_cast<PyObject*>(array->descr)))) + to_string(shape);
        throw nb::value_error(message.c_str());
    }
    return array->data;
}

Operand open_operand(nb::handle object, const char* name, ElementType type) {
    const PyArrayObject_fields* array = fields(object, name, false);
    const PyArray_Descr* descriptor = array->descr;
    if (!fits(type, descriptor->kind, descriptor->type, descriptor->elsize)) {
        throw nb::value_error((std::string("'") + name + "' is not of type " + name_of(type)).c_str());
    }
    return {array->data, Dims(array->dimensions, array->dimensions + array->nd)};
}

StridedArray open_strided(nb::handle object, const char* name, bool writable) {
    const PyArrayObject_fields* array = fields(object, name, writable, 0);
    return {reinterpret_cast<std::byte*>(array->data),
            {array->dimensions, array->dimensions + array->nd},
            {array->strides, array->strides + array->nd},
            static_cast<std::size_t>(array->descr->elsize)};
}

}  // namespace graphkit
