#include <algorithm>

#include "runtime/bindings.h"
#include "kernels/cumulative/cumulative.h"
#include "kernels/fill/fill.h"
#include "kernels/gather/gather.h"
#include "kernels/concat/concat.h"
#include "primitives/axis_gather.h"
#include "kernels/resize/resample.h"
#include "kernels/scatter/scatter.h"
#include "kernels/layout/layout.h"

namespace graphkit {
namespace {

using Text = const std::string&;
using OptionalDims = std::optional<Dims>;
using TapsTuple = std::tuple<std::int64_t, nb::bytes, nb::bytes, nb::bytes, nb::bytes>;

std::string bytes_of(const nb::bytes& value) {
    return {value.c_str(), value.size()};
}

template <typename T>
std::vector<T> elements_of(const nb::bytes& value) {
    std::vector<T> elements(value.size() / sizeof(T));
    std::copy_n(value.c_str(), elements.size() * sizeof(T), reinterpret_cast<char*>(elements.data()));
    return elements;
}

void bind_views(nb::module_& m) {
    nb::class_<StridedView, Kernel>(m, "StridedView", "y = x[offset + i . strides] for all i below sizes.")
        .def("__init__",
             [](StridedView* self, Text name, Dims x, Dims y, const Dims& sizes, const Dims& strides,
                std::int64_t offset, Text dtype, int threads) {
                 new (self) StridedView(name, std::move(x), std::move(y), sizes, strides, offset, element_type(dtype),
                                        threads);
             },
             "name"_a, "x"_a, "y"_a, "sizes"_a, "strides"_a, "offset"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<StridedPlacement, Kernel>(m, "StridedPlacement", "y[offset + i . strides] = x, 0 elsewhere.")
        .def("__init__",
             [](StridedPlacement* self, Text name, Dims x, Dims y, const Dims& strides, std::int64_t offset,
                Text dtype, int threads) {
                 new (self) StridedPlacement(name, std::move(x), std::move(y), strides, offset, element_type(dtype),
                                             threads);
             },
             "name"_a, "x"_a, "y"_a, "strides"_a, "offset"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<Concat, Kernel>(m, "Concat")
        .def("__init__",
             [](Concat* self, const std::vector<Dims>& xs, std::int64_t axis, Text dtype, int threads) {
                 new (self) Concat(xs, axis, element_type(dtype), threads);
             },
             "xs"_a, "axis"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<Split, Kernel>(m, "Split")
        .def("__init__",
             [](Split* self, Dims x, const Dims& sizes, std::int64_t axis, Text dtype, int threads) {
                 new (self) Split(std::move(x), sizes, axis, element_type(dtype), threads);
             },
             "x"_a, "sizes"_a, "axis"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<Pad, Kernel>(m, "Pad",
                            "maps: for each axis the positions copied, -1 for the fill value; None: the axis as it is.")
        .def("__init__",
             [](Pad* self, Dims x, const Maps& maps, Dims pads, OptionalDims value, Text dtype, int threads) {
                 new (self) Pad(std::move(x), maps, std::move(pads), std::move(value), element_type(dtype), threads);
             },
             "x"_a, "maps"_a, "pads"_a, "value"_a.none(), "dtype"_a, "threads"_a = 0);
    nb::class_<ResizeNearest, Kernel>(m, "ResizeNearest", "maps as Pad's; fill: the bytes of an element.")
        .def("__init__",
             [](ResizeNearest* self, Dims x, const Maps& maps, const nb::bytes& fill, Text dtype, int threads) {
                 new (self) ResizeNearest(std::move(x), maps, bytes_of(fill), element_type(dtype), threads);
             },
             "x"_a, "maps"_a, "fill"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<Resample, Kernel>(m, "Resample",
                                 "Weighted sums along axes, each (axis, starts, sources, weights, outside), arrays as bytes.")
        .def("__init__",
             [](Resample* self, Text name, Dims x, const std::vector<TapsTuple>& axes, double fill, bool round,
                Text dtype, int threads) {
                 std::vector<AxisTaps> taps;
                 for (const auto& [axis, starts, sources, weights, outside] : axes) {
                     taps.push_back({axis, elements_of<std::int64_t>(starts), elements_of<std::int32_t>(sources),
                                     elements_of<double>(weights), elements_of<std::uint8_t>(outside)});
                 }
                 new (self) Resample(name, std::move(x), std::move(taps), fill, round, element_type(dtype), threads);
             },
             "name"_a, "x"_a, "axes"_a, "fill"_a, "round"_a, "dtype"_a, "threads"_a = 0);
}

void bind_indexing(nb::module_& m) {
    nb::class_<Gather, Kernel>(m, "Gather")
        .def("__init__",
             [](Gather* self, Dims x, Dims indices, std::int64_t axis, Text dtype, Text index_dtype, int threads) {
                 new (self) Gather(std::move(x), std::move(indices), axis, element_type(dtype),
                                   element_type(index_dtype), threads);
             },
             "x"_a, "indices"_a, "axis"_a, "dtype"_a, "index_dtype"_a = "int64", "threads"_a = 0);
    nb::class_<GatherElements, Kernel>(m, "GatherElements")
        .def("__init__",
             [](GatherElements* self, Dims x, Dims indices, std::int64_t axis, Text dtype, Text index_dtype,
                int threads) {
                 new (self) GatherElements(std::move(x), std::move(indices), axis, element_type(dtype),
                                           element_type(index_dtype), threads);
             },
             "x"_a, "indices"_a, "axis"_a, "dtype"_a, "index_dtype"_a = "int64", "threads"_a = 0);
    nb::class_<GatherND, Kernel>(m, "GatherND")
        .def("__init__",
             [](GatherND* self, Dims x, Dims indices, std::int64_t batch_dims, Text dtype, int threads) {
                 new (self) GatherND(std::move(x), std::move(indices), batch_dims, element_type(dtype), threads);
             },
             "x"_a, "indices"_a, "batch_dims"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<GatherGrad, Kernel>(m, "GatherGrad")
        .def("__init__",
             [](GatherGrad* self, Dims x, Text x_dtype, Dims indices, std::int64_t axis, Text dtype, Text index_dtype,
                int threads) {
                 new (self) GatherGrad(std::move(x), element_type(x_dtype), std::move(indices), axis,
                                       element_type(dtype), element_type(index_dtype), threads);
             },
             "x"_a, "x_dtype"_a, "indices"_a, "axis"_a, "dtype"_a, "index_dtype"_a = "int64", "threads"_a = 0);
    nb::class_<ScatterElements, Kernel>(m, "ScatterElements")
        .def("__init__",
             [](ScatterElements* self, Dims x, Dims indices, std::int64_t axis, Text reduction, Text dtype,
                Text index_dtype, int threads) {
                 new (self) ScatterElements(std::move(x), std::move(indices), axis, reduction_named(reduction),
                                            element_type(dtype), element_type(index_dtype), threads);
             },
             "x"_a, "indices"_a, "axis"_a, "reduction"_a, "dtype"_a, "index_dtype"_a = "int64", "threads"_a = 0);
    nb::class_<ScatterND, Kernel>(m, "ScatterND")
        .def("__init__",
             [](ScatterND* self, Dims x, Dims indices, Text reduction, Text dtype, int threads) {
                 new (self) ScatterND(std::move(x), std::move(indices), reduction_named(reduction),
                                      element_type(dtype), threads);
             },
             "x"_a, "indices"_a, "reduction"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<ReverseSequence, Kernel>(m, "ReverseSequence")
        .def("__init__",
             [](ReverseSequence* self, Dims x, bool batch_first, Text dtype, int threads) {
                 new (self) ReverseSequence(std::move(x), batch_first, element_type(dtype), threads);
             },
             "x"_a, "batch_first"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<Cumulative, Kernel>(m, "Cumulative")
        .def("__init__",
             [](Cumulative* self, Dims x, std::int64_t axis, bool product, bool exclusive, bool reverse, Text dtype,
                int threads) {
                 new (self) Cumulative(std::move(x), axis, product, exclusive, reverse, element_type(dtype), threads);
             },
             "x"_a, "axis"_a, "product"_a, "exclusive"_a, "reverse"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<LinearRecurrence, Kernel>(m, "LinearRecurrence")
        .def("__init__",
             [](LinearRecurrence* self, Dims a, std::int64_t axis, bool reverse, Text dtype, int threads) {
                 new (self) LinearRecurrence(std::move(a), axis, reverse, element_type(dtype), threads);
             },
             "a"_a, "axis"_a, "reverse"_a, "dtype"_a, "threads"_a = 0);
}

void bind_fills(nb::module_& m) {
    nb::class_<Fill, Kernel>(m, "Fill")
        .def("__init__",
             [](Fill* self, Dims y, const nb::bytes& value, Text dtype, int threads) {
                 new (self) Fill(std::move(y), bytes_of(value), element_type(dtype), threads);
             },
             "y"_a, "value"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<Range, Kernel>(m, "Range")
        .def("__init__",
             [](Range* self, const std::vector<Dims>& shapes, std::int64_t length, Text dtype, int threads) {
                 new (self) Range(shapes, length, element_type(dtype), threads);
             },
             "shapes"_a, "length"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<FiniteGuard, Kernel>(m, "FiniteGuard")
        .def("__init__",
             [](FiniteGuard* self, Dims x, Text dtype, Dims token, Text token_dtype) {
                 new (self) FiniteGuard(std::move(x), element_type(dtype), std::move(token),
                                        element_type(token_dtype));
             },
             "x"_a, "dtype"_a, "token"_a, "token_dtype"_a);
    nb::class_<EyeLike, Kernel>(m, "EyeLike")
        .def("__init__",
             [](EyeLike* self, Dims x, Text x_dtype, std::int64_t k, const nb::bytes& one, Text dtype, int threads) {
                 new (self) EyeLike(std::move(x), element_type(x_dtype), k, bytes_of(one), element_type(dtype),
                                    threads);
             },
             "x"_a, "x_dtype"_a, "k"_a, "one"_a, "dtype"_a, "threads"_a = 0);
    nb::class_<OneHot, Kernel>(m, "OneHot")
        .def("__init__",
             [](OneHot* self, Dims indices, Dims depth_shape, std::int64_t depth, std::int64_t axis, Text dtype,
                Text index_dtype, Text depth_dtype, int threads) {
                 new (self) OneHot(std::move(indices), std::move(depth_shape), depth, axis, element_type(dtype),
                                   element_type(index_dtype), element_type(depth_dtype), threads);
             },
             "indices"_a, "depth_shape"_a, "depth"_a, "axis"_a, "dtype"_a, "index_dtype"_a = "int64",
             "depth_dtype"_a = "int64", "threads"_a = 0);
    nb::class_<Trilu, Kernel>(m, "Trilu")
        .def("__init__",
             [](Trilu* self, Dims x, bool upper, OptionalDims k, Text dtype, int threads) {
                 new (self) Trilu(std::move(x), upper, std::move(k), element_type(dtype), threads);
             },
             "x"_a, "upper"_a, "k"_a.none(), "dtype"_a, "threads"_a = 0);
}

}  // namespace

void bind_movement(nb::module_& m) {
    bind_views(m);
    bind_indexing(m);
    bind_fills(m);
}

}  // namespace graphkit
