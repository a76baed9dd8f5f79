#include "kernels/norm/batch_norm_channels_last.h"
#include "runtime/bindings.h"
#include "kernels/norm/norm_grad.h"

namespace graphkit {

void bind_normalization(nb::module_& m) {
    nb::class_<LayerNorm, Kernel>(m, "LayerNorm")
        .def(nb::init<const Dims&, std::int64_t, const Dims&, const std::optional<Dims>&, const std::string&, double,
                      bool, const std::string&, bool, int>(),
             "x"_a, "axis"_a, "scale"_a, "bias"_a.none(), "type"_a, "epsilon"_a, "about_mean"_a = true,
             "stash"_a = "float32", "y"_a = true, "threads"_a = 0);
    nb::class_<GroupNorm, Kernel>(m, "GroupNorm")
        .def(nb::init<const Dims&, std::int64_t, const std::string&, double, int>(), "x"_a, "groups"_a, "type"_a,
             "epsilon"_a, "threads"_a = 0);
    nb::class_<BatchNorm, Kernel>(m, "BatchNorm")
        .def(nb::init<const Dims&, const std::string&, const std::string&, const std::string&, double, bool, double,
                      int>(),
             "x"_a, "type"_a, "scale_type"_a, "mean_type"_a, "epsilon"_a, "training"_a = false, "momentum"_a = 0.9,
             "threads"_a = 0);
    nb::class_<LocalResponseNorm, Kernel>(m, "LocalResponseNorm")
        .def(nb::init<const Dims&, const std::string&, std::int64_t, double, double, double, int>(), "x"_a, "type"_a,
             "size"_a, "alpha"_a, "beta"_a, "bias"_a, "threads"_a = 0);
    nb::class_<LayerNormGrad, Kernel>(m, "LayerNormGrad")
        .def(nb::init<const Dims&, std::int64_t, const Dims&, const std::string&, double, bool, const std::string&,
                      int>(),
             "x"_a, "axis"_a, "scale"_a, "type"_a, "epsilon"_a, "about_mean"_a = true, "statistics"_a = "float32",
             "threads"_a = 0);
    nb::class_<BatchNormGrad, Kernel>(m, "BatchNormGrad")
        .def(nb::init<const Dims&, const std::string&, const std::string&, double, int>(), "x"_a, "type"_a,
             "scale_type"_a, "epsilon"_a, "threads"_a = 0);
    nb::class_<ChannelsLastBatchNorm, Kernel>(m, "ChannelsLastBatchNorm")
        .def(nb::init<Dims, double, double, float, float, bool, int>(), "x"_a, "epsilon"_a, "momentum"_a, nb::kw_only(),
             "low"_a, "high"_a, "residual"_a = false, "threads"_a = 0);
    nb::class_<ChannelsLastBatchNormGrad, Kernel>(m, "ChannelsLastBatchNormGrad")
        .def(
            "__init__",
            [](ChannelsLastBatchNormGrad* self, Dims x, std::optional<std::pair<float, float>> passed, bool from_y,
               bool addend, int threads) {
                const NormMask mask = passed ? NormMask{true, passed->first, passed->second} : NormMask{};
                new (self) ChannelsLastBatchNormGrad(std::move(x), mask, from_y, addend, threads);
            },
            "x"_a, nb::kw_only(), "passed"_a.none() = nb::none(), "from_y"_a = false, "addend"_a = false,
            "threads"_a = 0);
}

}  // namespace graphkit
