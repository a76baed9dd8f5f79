#include "bindings.h"
#include "convolution.h"
#include "matmul.h"

namespace graphkit {
namespace {

Epilogue epilogue(const std::string& activation, float alpha, float beta, bool residual, bool residual_last) {
    Epilogue made;
    if (!activation.empty()) {
        made.activation = Activation{activation, alpha, beta};
    }
    made.residual = residual;
    made.residual_last = residual_last;
    return made;
}

template <typename Kind>
void bind_convolution(nb::module_& m, const char* name) {
    nb::class_<Kind, Kernel>(m, name).def(
        "__init__",
        [](Kind* self, Dims x, Dims w, Dims y, const Window& window, bool bias, const Epilogue& last,
           bool pack_weights, bool channels_last, const std::string& dtype, int threads) {
            new (self) Kind(std::move(x), std::move(w), std::move(y), window,
                            {bias, last, pack_weights, element_type(dtype), channels_last}, threads);
        },
        "x"_a, "w"_a, "y"_a, "window"_a, nb::kw_only(), "bias"_a = false, "epilogue"_a = Epilogue{},
        "pack_weights"_a = false, "channels_last"_a = false, "dtype"_a = "float32", "threads"_a = 0, NoGil());
}

}  // namespace

void bind_onednn(nb::module_& m) {
    nb::class_<Epilogue>(m, "Epilogue", "What happens to a result before it is stored.")
        .def(
            "__init__",
            [](Epilogue* self, const std::string& activation, float alpha, float beta, bool residual,
               bool residual_last) { new (self) Epilogue(epilogue(activation, alpha, beta, residual, residual_last)); },
            "activation"_a = "", "alpha"_a = 0, "beta"_a = 0, "residual"_a = false, "residual_last"_a = false);

    nb::class_<MatMul, Kernel>(m, "MatMul")
        .def(
            "__init__",
            [](MatMul* self, Dims a, Dims b, bool transpose_a, bool transpose_b, std::optional<Dims> bias, float alpha,
               float beta, const Epilogue& last, bool pack_b, const std::string& dtype, int threads) {
                new (self) MatMul(std::move(a), std::move(b),
                                  {transpose_a, transpose_b, std::move(bias), alpha, beta, element_type(dtype), last, pack_b}, threads);
            },
            "a"_a, "b"_a, nb::kw_only(), "transpose_a"_a = false, "transpose_b"_a = false, "bias"_a = nb::none(),
            "alpha"_a = 1.0F, "beta"_a = 1.0F, "epilogue"_a = Epilogue{}, "pack_b"_a = false, "dtype"_a = "float32", "threads"_a = 0, NoGil());

    nb::class_<Window>(m, "Window")
        .def(nb::init<Dims, Dims, Dims, Dims, std::int64_t>(), "strides"_a, "dilations"_a, "pads_begin"_a, "pads_end"_a,
             "groups"_a = 1);
    bind_convolution<Convolution>(m, "Convolution");
    bind_convolution<Deconvolution>(m, "Deconvolution");
    nb::class_<ConvolutionBackwardData, Kernel>(m, "ConvolutionBackwardData")
        .def(nb::init<Dims, Dims, Dims, const Window&, bool, bool, int>(), "dy"_a, "w"_a, "dx"_a, "window"_a,
             nb::kw_only(), "pack_weights"_a = false, "channels_last"_a = false, "threads"_a = 0, NoGil());
    nb::class_<ConvolutionBackwardWeights, Kernel>(m, "ConvolutionBackwardWeights")
        .def(nb::init<Dims, Dims, Dims, const Window&, bool, bool, int>(), "x"_a, "dy"_a, "dw"_a, "window"_a,
             nb::kw_only(), "bias"_a = false, "channels_last"_a = false, "threads"_a = 0, NoGil());
}

}  // namespace graphkit
