// The Python module graphkit._native. graphkit/_native.pyi describes it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "cpu_info.h"
#include "pooling.h"
#include "step.h"
#include "threads.h"

#ifdef GRAPHKIT_ONEDNN
#include "convolution.h"
#include "matmul.h"
#endif

namespace nb = nanobind;
using namespace nb::literals;

namespace graphkit {
namespace {

using NoGil = nb::call_guard<nb::gil_scoped_release>;

// The memory of one array, held for as long as this object lives.
class Array {
  public:
    Array() = default;
    ~Array() { release(); }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;

    // Throws ValueError or TypeError when `object` is not a contiguous array as `spec` says.
    void* open(nb::handle object, const TensorSpec& spec, const Step& step, bool writable) {
        const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
            nb::chain_error(PyExc_ValueError, "%s: '%s' needs a contiguous%s array, not %R", step.describe().c_str(),
                            spec.name.c_str(), writable ? ", writable" : "", Py_TYPE(object.ptr()));
            throw nb::python_error();
        }
        open_ = true;
        if (!fits(spec)) {
            Dims shape(view_.shape, view_.shape + view_.ndim);
            const std::string message = step.describe() + ": '" + spec.name + "' got an array of format '" +
                                        (view_.format == nullptr ? "B" : view_.format) + "' and shape " +
                                        to_string(shape);
            release();
            throw nb::value_error(message.c_str());
        }
        return view_.buf;
    }

  private:
    bool fits(const TensorSpec& spec) const {
        const auto rank = static_cast<std::size_t>(view_.ndim);
        if (rank != spec.shape.size() || !std::equal(spec.shape.begin(), spec.shape.end(), view_.shape)) {
            return false;
        }
        const char format = view_.format == nullptr || view_.format[1] != '\0' ? '\0' : view_.format[0];
        return spec.type == ElementType::f32 ? format == 'f' : view_.itemsize == 8 && (format == 'l' || format == 'q');
    }

    void release() {
        if (open_) {
            PyBuffer_Release(&view_);
            open_ = false;
        }
    }

    Py_buffer view_{};
    bool open_ = false;
};

constexpr std::size_t kMostOperands = 4;

// The arrays of a call, checked against what a step expects.
class Arrays {
  public:
    void open(nb::handle sequence, const std::vector<TensorSpec>& specs, const Step& step, bool writable,
              int may_lack) {
        const auto items = nb::steal(PySequence_Fast(sequence.ptr(), "inputs and outputs are sequences of arrays"));
        if (!items.is_valid()) {
            throw nb::python_error();
        }
        const auto given = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(items.ptr()));
        if (given < specs.size()) {
            const std::string message = step.describe() + ": " + std::to_string(given) + " arrays for " +
                                        std::to_string(specs.size()) + (writable ? " outputs" : " inputs");
            throw nb::value_error(message.c_str());
        }
        for (std::size_t i = 0; i < specs.size(); ++i) {
            const nb::handle item = PySequence_Fast_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i));
            if (!item.is_none()) {
                pointers_[i] = arrays_[i].open(item, specs[i], step, writable);
            } else if (!specs[i].optional && static_cast<int>(i) != may_lack) {
                const std::string message = step.describe() + ": '" + specs[i].name + "' is missing";
                throw nb::value_error(message.c_str());
            }
        }
        size_ = specs.size();
    }

    std::span<void* const> pointers() { return {pointers_, size_}; }
    std::span<const void* const> const_pointers() { return {const_cast<const void* const*>(pointers_), size_}; }

  private:
    Array arrays_[kMostOperands];
    void* pointers_[kMostOperands] = {};
    std::size_t size_ = 0;
};

void call(Step& step, nb::handle inputs, nb::handle outputs, const Packed* packed) {
    Arrays in;
    Arrays out;
    in.open(inputs, step.inputs(), step, false, packed == nullptr ? -1 : step.packable());
    out.open(outputs, step.outputs(), step, true, -1);
    nb::gil_scoped_release no_gil;
    step.run(in.const_pointers(), out.pointers(), packed);
}

std::unique_ptr<Packed> pack(Step& step, nb::handle array) {
    if (step.packable() < 0) {
        throw NativeError(step.describe() + ": has no operand that can be packed");
    }
    Array view;
    const void* data = view.open(array, step.inputs()[static_cast<std::size_t>(step.packable())], step, false);
    nb::gil_scoped_release no_gil;
    return step.pack(data);
}

void bind_steps(nb::module_& m) {
    nb::class_<Packed>(m, "Packed", "A constant operand in the layout that a step prefers. Immutable.")
        .def_prop_ro("nbytes", &Packed::bytes);

    nb::class_<Step>(m, "Step", "A kernel prepared for fixed shapes. Calls run without the GIL, one at a time.")
        .def("__call__", &call, "inputs"_a, "outputs"_a, "packed"_a.none() = nb::none(),
             "Write the outputs. Extra arrays are ignored; ValueError for arrays that do not fit.")
        .def("pack", &pack, "array"_a, "A packed copy of input number `packable`.")
        .def_prop_ro("packable", &Step::packable, "The input that profits from packing, or -1.")
        .def_prop_ro("implementation", &Step::implementation)
        .def_prop_ro("threads", &Step::threads)
        .def("__repr__", [](const Step& step) { return std::string("<").append(step.describe()).append(">"); });
}

void bind_pooling(nb::module_& m) {
    nb::class_<PoolWindow>(m, "PoolWindow")
        .def(nb::init<Dims, Dims, Dims, Dims, Dims>(), "kernel"_a, "strides"_a, "dilations"_a, "pads_begin"_a,
             "pads_end"_a);
    nb::class_<MaxPool, Step>(m, "MaxPool")
        .def(nb::init<Dims, Dims, const PoolWindow&, bool, int>(), "x"_a, "y"_a, "window"_a, "column_major"_a = false,
             "threads"_a = 0);
    nb::class_<MaxPoolGrad, Step>(m, "MaxPoolGrad").def(nb::init<Dims, Dims, int>(), "dy"_a, "dx"_a, "threads"_a = 0);
    nb::class_<AveragePool, Step>(m, "AveragePool")
        .def(nb::init<Dims, Dims, const PoolWindow&, bool, int>(), "x"_a, "y"_a, "window"_a, "include_pad"_a = false,
             "threads"_a = 0);
    nb::class_<AveragePoolGrad, Step>(m, "AveragePoolGrad")
        .def(nb::init<Dims, Dims, const PoolWindow&, bool, int>(), "dy"_a, "dx"_a, "window"_a, "include_pad"_a = false,
             "threads"_a = 0);
}

#ifdef GRAPHKIT_ONEDNN
template <typename Kind>
void bind_convolution(nb::module_& m, const char* name) {
    nb::class_<Kind, Step>(m, name).def(
        "__init__",
        [](Kind* self, Dims x, Dims w, Dims y, const Window& window, bool bias, std::vector<PostOp> post_ops,
           bool pack_weights, int threads) {
            new (self) Kind(std::move(x), std::move(w), std::move(y), window, {bias, std::move(post_ops), pack_weights},
                            threads);
        },
        "x"_a, "w"_a, "y"_a, "window"_a, nb::kw_only(), "bias"_a = false, "post_ops"_a = nb::list(),
        "pack_weights"_a = false, "threads"_a = 0, NoGil());
}

void bind_onednn(nb::module_& m) {
    nb::class_<PostOp>(m, "PostOp", "An elementwise function applied to a result.")
        .def(nb::init<std::string, float, float>(), "kind"_a, "alpha"_a = 0, "beta"_a = 0);

    nb::class_<MatMul, Step>(m, "MatMul")
        .def(
            "__init__",
            [](MatMul* self, Dims a, Dims b, bool transpose_a, bool transpose_b, std::optional<Dims> bias, float alpha,
               float beta, std::vector<PostOp> post_ops, bool pack_b, int threads) {
                new (self) MatMul(std::move(a), std::move(b),
                                  {transpose_a, transpose_b, std::move(bias), alpha, beta, std::move(post_ops), pack_b},
                                  threads);
            },
            "a"_a, "b"_a, nb::kw_only(), "transpose_a"_a = false, "transpose_b"_a = false, "bias"_a = nb::none(),
            "alpha"_a = 1.0F, "beta"_a = 1.0F, "post_ops"_a = nb::list(), "pack_b"_a = false, "threads"_a = 0, NoGil());

    nb::class_<Window>(m, "Window")
        .def(nb::init<Dims, Dims, Dims, Dims, std::int64_t>(), "strides"_a, "dilations"_a, "pads_begin"_a, "pads_end"_a,
             "groups"_a = 1);
    bind_convolution<Convolution>(m, "Convolution");
    bind_convolution<Deconvolution>(m, "Deconvolution");
    nb::class_<ConvolutionBackwardData, Step>(m, "ConvolutionBackwardData")
        .def(nb::init<Dims, Dims, Dims, const Window&, bool, int>(), "dy"_a, "w"_a, "dx"_a, "window"_a, nb::kw_only(),
             "pack_weights"_a = false, "threads"_a = 0, NoGil());
    nb::class_<ConvolutionBackwardWeights, Step>(m, "ConvolutionBackwardWeights")
        .def(nb::init<Dims, Dims, Dims, const Window&, bool, int>(), "x"_a, "dy"_a, "dw"_a, "window"_a, nb::kw_only(),
             "bias"_a = false, "threads"_a = 0, NoGil());
}
#endif

}  // namespace
}  // namespace graphkit

NB_MODULE(_native, m) {
    using namespace graphkit;
    m.doc() = "graphkit's native kernels.";
    m.attr("version") = GRAPHKIT_VERSION;
    m.def("compiler", &compiler, "Name and version of the compiler that built this module.");
    m.def("cpu_features", &cpu_features, "Instruction sets that processor and operating system offer.");
    m.def("default_threads", &default_threads, "Threads of steps made with threads=0.");
    m.def("set_default_threads", &set_default_threads, "threads"_a, "0: the cores allowed.");

    const nb::exception<NativeError> error(m, "Error", PyExc_RuntimeError);
    nb::exception<Unsupported>(m, "Unsupported", error);  // after its base, so that it is tried first

    bind_steps(m);
    bind_pooling(m);
#ifdef GRAPHKIT_ONEDNN
    m.def("has_onednn", [] { return true; });
    m.def("onednn_version", &onednn_version);
    m.def("onednn_isa", &onednn_isa, "The instruction set that oneDNN uses.");
    bind_onednn(m);
#else
    m.def("has_onednn", [] { return false; });
#endif
}
