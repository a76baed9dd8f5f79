#include "runtime/bindings.h"
#include "kernels/im2col/im2col.h"
#include "kernels/roi/roi.h"

namespace graphkit {

void bind_regions(nb::module_& m) {
    nb::class_<RoiAlign, Kernel>(m, "RoiAlign")
        .def(
            "__init__",
            [](RoiAlign* self, const Dims& x, std::int64_t rois, std::int64_t height, std::int64_t width,
               std::int64_t samples, double scale, bool half_pixel, bool maximum, int threads) {
                const RoiOptions options{height, width, samples, static_cast<float>(scale), half_pixel, maximum};
                new (self) RoiAlign(x, rois, options, threads);
            },
            "x"_a, "rois"_a, nb::kw_only(), "height"_a, "width"_a, "samples"_a, "scale"_a, "half_pixel"_a,
            "maximum"_a, "threads"_a = 0);
    nb::class_<NonMaxSuppression, Kernel>(m, "NonMaxSuppression")
        .def(nb::init<std::int64_t, std::int64_t, std::int64_t, std::int64_t, float, std::optional<float>, bool, int>(),
             "images"_a, "classes"_a, "boxes"_a, nb::kw_only(), "most"_a, "overlap"_a, "least"_a.none(), "centred"_a,
             "threads"_a = 0)
        .def_prop_ro("capacity", &NonMaxSuppression::capacity, "The most rows that can be selected.");
    nb::class_<Columns, Kernel>(m, "Columns")
        .def(
            "__init__",
            [](Columns* self, bool add, std::int64_t batch, std::int64_t channels, const Dims& image,
               const Dims& block, const Dims& positions, const Dims& strides, const Dims& dilations,
               const Dims& begin, const std::string& dtype, int threads) {
                new (self) Columns(add, batch, channels, image, block, positions, strides, dilations, begin,
                                   element_type(dtype), threads);
            },
            nb::kw_only(), "add"_a, "batch"_a, "channels"_a, "image"_a, "block"_a, "positions"_a, "strides"_a,
            "dilations"_a, "begin"_a, "dtype"_a, "threads"_a = 0);
}

}  // namespace graphkit
