#include "runtime/bindings.h"
#include "kernels/conv/conv.h"
#include "onednn/invalid_watch.h"
#include "kernels/matmul/matmul.h"
#include "kernels/conv/tiled_conv.h"
#include "onednn/watched_product.h"

namespace graphkit {
namespace {

Epilogue epilogue(const std::string& activation, float alpha, float beta, bool residual, bool residual_last,
                  bool fused) {
    Epilogue made;
    if (!activation.empty()) {
        made.activation = Activation{activation, alpha, beta};
    }
    made.residual = residual ? 1.0F : 0.0F;
    made.residual_last = residual_last;
    made.applied = fused ? Applied::fused : Applied::after;
    return made;
}

// A type of its own for each kind of product, as classes in Python need.
template <typename Kind>
class Watched final : public WatchedProduct {
  public:
    using WatchedProduct::WatchedProduct;
};

template <typename Kind>
void bind_convolution(nb::module_& m, const char* name) {
    nb::class_<Watched<Kind>, Kernel>(m, name).def(
        "__init__",
        [](Watched<Kind>* self, const Dims& x, const Dims& w, const Dims& y, const Window& window, bool bias,
           Epilogue last, bool pack_weights, bool channels_last, bool deterministic, const std::string& dtype,
           int threads) {
            const ElementType type = element_type(dtype);
            last.bias = bias;
            const auto make = [=](const Epilogue& end, bool may_pack) {
                const ConvolutionOptions options{end, pack_weights && may_pack, type, channels_last, deterministic};
                return std::make_unique<Kind>(x, w, y, window, options, threads);
            };
            new (self) Watched<Kind>(make, last);
        },
        "x"_a, "w"_a, "y"_a, "window"_a, nb::kw_only(), "bias"_a = false, "epilogue"_a = Epilogue{},
        "pack_weights"_a = false, "channels_last"_a = false, "deterministic"_a = false, "dtype"_a = "float32",
        "threads"_a = 0, NoGil());
}

}  // namespace

void bind_onednn(nb::module_& m) {
    m.def("onednn_regions_are_watched", &sees_library_regions,
          "Whether a parallel region of oneDNN has told this process what was invalid in it; else the team is asked.");
    nb::class_<Epilogue>(m, "Epilogue",
                         "What happens to a product before it is stored: an activation with oneDNN's alpha and beta, the "
                         "sum with a residual before it or last. Not `fused`: in a pass of graphkit's own.")
        .def(
            "__init__",
            [](Epilogue* self, const std::string& activation, float alpha, float beta, bool residual,
               bool residual_last, bool fused) {
                new (self) Epilogue(epilogue(activation, alpha, beta, residual, residual_last, fused));
            },
            "activation"_a = "", "alpha"_a = 0, "beta"_a = 0, "residual"_a = false, "residual_last"_a = false,
            "fused"_a = true);

    nb::class_<Watched<MatMul>, Kernel>(m, "MatMul")
        .def(
            "__init__",
            [](Watched<MatMul>* self, const Dims& a, const Dims& b, bool transpose_a, bool transpose_b,
               const std::optional<Dims>& bias, float alpha, float beta, const Epilogue& last, bool pack_b,
               bool deterministic, const std::string& dtype, int threads) {
                const ElementType type = element_type(dtype);
                const auto make = [=](const Epilogue& end, bool may_pack) {
                    const MatMulOptions options{transpose_a, transpose_b, bias, alpha,              beta,
                                                type,        end,         pack_b && may_pack, deterministic};
                    return std::make_unique<MatMul>(a, b, options, threads);
                };
                new (self) Watched<MatMul>(make, last);
            },
            "a"_a, "b"_a, nb::kw_only(), "transpose_a"_a = false, "transpose_b"_a = false, "bias"_a = nb::none(),
            "alpha"_a = 1.0F, "beta"_a = 1.0F, "epilogue"_a = Epilogue{}, "pack_b"_a = false,
            "deterministic"_a = false, "dtype"_a = "float32", "threads"_a = 0, NoGil());

    nb::class_<Window>(m, "Window")
        .def(nb::init<Dims, Dims, Dims, Dims, std::int64_t>(), "strides"_a, "dilations"_a, "pads_begin"_a, "pads_end"_a,
             "groups"_a = 1);
    bind_convolution<Convolution>(m, "Convolution");
    bind_convolution<Deconvolution>(m, "Deconvolution");
    nb::enum_<TiledMethod>(m, "TiledMethod").value("winograd", TiledMethod::winograd).value("direct", TiledMethod::direct);
    nb::class_<TiledConvolution, Kernel>(m, "TiledConvolution")
        .def(
            "__init__",
            [](TiledConvolution* self, const Dims& x, const Dims& w, const Dims& y, const Window& window,
               TiledMethod method, bool bias, Epilogue last, bool pack_weights, bool transposed, int threads) {
                last.bias = bias;
                new (self) TiledConvolution(x, w, y, window, {method, last, pack_weights, transposed}, threads);
            },
            "x"_a, "w"_a, "y"_a, "window"_a, "method"_a, nb::kw_only(), "bias"_a = false, "epilogue"_a = Epilogue{},
            "pack_weights"_a = false, "transposed"_a = false, "threads"_a = 0, NoGil())
        .def_static("method", &TiledConvolution::method, "x"_a, "w"_a, "y"_a, "window"_a, nb::kw_only(), "constant"_a,
                    "transposed"_a = false,
                    "The method to compute this convolution with, of constant weights or not; None where the library's code "
                    "is faster, and has no longer chains of sums.");
    nb::class_<ConvolutionBackwardData, Kernel>(m, "ConvolutionBackwardData")
        .def(
            "__init__",
            [](ConvolutionBackwardData* self, Dims dy, Dims w, Dims dx, const Window& window, bool pack_weights,
               bool channels_last, bool deterministic, const std::string& dtype, int threads) {
                const GradientOptions options{pack_weights, channels_last, element_type(dtype), deterministic};
                new (self)
                    ConvolutionBackwardData(std::move(dy), std::move(w), std::move(dx), window, options, threads);
            },
            "dy"_a, "w"_a, "dx"_a, "window"_a, nb::kw_only(), "pack_weights"_a = false, "channels_last"_a = false,
            "deterministic"_a = false, "dtype"_a = "float32", "threads"_a = 0, NoGil());
    nb::class_<ConvolutionBackwardWeights, Kernel>(m, "ConvolutionBackwardWeights")
        .def(
            "__init__",
            [](ConvolutionBackwardWeights* self, Dims x, Dims dy, Dims dw, const Window& window, bool bias,
               bool channels_last, bool deterministic, const std::string& dtype, int threads) {
                const GradientOptions options{false, channels_last, element_type(dtype), deterministic};
                new (self) ConvolutionBackwardWeights(std::move(x), std::move(dy), std::move(dw), window, bias, options,
                                                      threads);
            },
            "x"_a, "dy"_a, "dw"_a, "window"_a, nb::kw_only(), "bias"_a = false, "channels_last"_a = false,
            "deterministic"_a = false, "dtype"_a = "float32", "threads"_a = 0, NoGil());
}

}  // namespace graphkit
