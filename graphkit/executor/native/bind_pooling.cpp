#include "runtime/bindings.h"
#include "kernels/conv/depthwise_channels_last.h"
#include "kernels/pool/pool.h"
#include "kernels/pool/pool_channels_last.h"
#include "kernels/pool/pool_channels_last_grad.h"

namespace graphkit {

void bind_pooling(nb::module_& m) {
    nb::class_<PoolWindow>(m, "PoolWindow")
        .def(nb::init<Dims, Dims, Dims, Dims, Dims>(), "kernel"_a, "strides"_a, "dilations"_a, "pads_begin"_a,
             "pads_end"_a);
    nb::class_<MaxPool, Kernel>(m, "MaxPool")
        .def(nb::init<Dims, Dims, const PoolWindow&, bool, int>(), "x"_a, "y"_a, "window"_a, "column_major"_a = false,
             "threads"_a = 0);
    nb::class_<MaxPoolGrad, Kernel>(m, "MaxPoolGrad").def(nb::init<Dims, Dims, int>(), "dy"_a, "dx"_a, "threads"_a = 0);
    nb::class_<AveragePool, Kernel>(m, "AveragePool")
        .def(nb::init<Dims, Dims, const PoolWindow&, bool, int>(), "x"_a, "y"_a, "window"_a, "include_pad"_a = false,
             "threads"_a = 0);
    nb::class_<LpPool, Kernel>(m, "LpPool")
        .def(nb::init<Dims, Dims, const PoolWindow&, std::int64_t, int>(), "x"_a, "y"_a, "window"_a, "p"_a = 2,
             "threads"_a = 0);
    nb::class_<AveragePoolGrad, Kernel>(m, "AveragePoolGrad")
        .def(nb::init<Dims, Dims, const PoolWindow&, bool, int>(), "dy"_a, "dx"_a, "window"_a, "include_pad"_a = false,
             "threads"_a = 0);
    nb::class_<ChannelsLastPool, Kernel>(m, "ChannelsLastPool")
        .def(
            "__init__",
            [](ChannelsLastPool* self, Dims x, Dims y, const PoolWindow& window, bool maximum, bool include_pad,
               int threads) {
                const auto mode = maximum      ? PoolMode::maximum
                                  : include_pad ? PoolMode::mean_with_padding
                                                : PoolMode::mean;
                new (self) ChannelsLastPool(std::move(x), std::move(y), window, mode, threads);
            },
            "x"_a, "y"_a, "window"_a, nb::kw_only(), "maximum"_a, "include_pad"_a = false, "threads"_a = 0);
    nb::class_<ChannelsLastMaxPoolTaps, Kernel>(m, "ChannelsLastMaxPoolTaps")
        .def(nb::init<Dims, Dims, const PoolWindow&, int>(), "x"_a, "y"_a, "window"_a, "threads"_a = 0);
    nb::class_<ChannelsLastMaxPoolGrad, Kernel>(m, "ChannelsLastMaxPoolGrad")
        .def(nb::init<Dims, Dims, const PoolWindow&, int>(), "dy"_a, "dx"_a, "window"_a, "threads"_a = 0);
    nb::class_<ChannelsLastAveragePoolGrad, Kernel>(m, "ChannelsLastAveragePoolGrad")
        .def(nb::init<Dims, Dims, const PoolWindow&, bool, int>(), "dy"_a, "dx"_a, "window"_a, "include_pad"_a = false,
             "threads"_a = 0);
    nb::class_<DepthwiseConvolution, Kernel>(m, "DepthwiseConvolution")
        .def(nb::init<Dims, Dims, const PoolWindow&, int>(), "x"_a, "y"_a, "window"_a, "threads"_a = 0);
    nb::class_<DepthwiseBackwardData, Kernel>(m, "DepthwiseBackwardData")
        .def(nb::init<Dims, Dims, const PoolWindow&, int>(), "dy"_a, "dx"_a, "window"_a, "threads"_a = 0);
    nb::class_<DepthwiseBackwardWeights, Kernel>(m, "DepthwiseBackwardWeights")
        .def(nb::init<Dims, Dims, const PoolWindow&, int>(), "x"_a, "dy"_a, "window"_a, "threads"_a = 0);
}

}  // namespace graphkit
