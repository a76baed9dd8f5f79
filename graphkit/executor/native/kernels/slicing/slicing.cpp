// The transpose of Slice. Slices themselves are views: see kernels/layout.
#include "primitives/elements.h"
#include "primitives/strided_copy.h"
#include "runtime/bindings.h"
#include "runtime/recipe.h"

namespace graphkit {
namespace {

// y[offset + i . strides] = x[i], and 0 elsewhere: the transpose of a slice. Throws NativeError if the slice exceeds y.
class StridedPlacement final : public Kernel {
  public:
    StridedPlacement(std::string name, Dims x, Dims y, const Dims& strides, std::int64_t offset, ElementType type,
                     int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    StridedCopy copy_;
    std::int64_t offset_;
    bool whole_;  // x fills all of y
};

}  // namespace

StridedPlacement::StridedPlacement(std::string name, Dims x, Dims y, const Dims& strides, std::int64_t offset,
                                   ElementType type, int threads)
    : Kernel(std::move(name), threads), offset_(offset * static_cast<std::int64_t>(size_of(type))) {
    const Dims sizes = x;
    inputs_ = {{"x", std::move(x), type}};
    outputs_ = {{"y", std::move(y), type}};
    require_inside(*this, sizes, strides, offset, count(outputs_[0].shape));
    whole_ = count(sizes) == count(outputs_[0].shape);
    copy_ = StridedCopy(sizes, row_major(sizes), strides, size_of(type));
}

void StridedPlacement::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    auto* y = static_cast<std::byte*>(outputs[0]);
    if (!whole_) {
        clear(threads(), y, count(outputs_[0].shape) * static_cast<std::int64_t>(size_of(outputs_[0].type)));
    }
    copy_.run(threads(), inputs[0], y + offset_);
}

static const RecipeKind strided_placement_recipe(
    "StridedPlacement", +[](StridedPlacement* self, Text name, Dims x, Dims y, const Dims& strides, std::int64_t offset,
                            Text dtype, int threads) {
        new (self) StridedPlacement(name, std::move(x), std::move(y), strides, offset, element_type(dtype), threads);
    });

GRAPHKIT_BINDINGS(slicing) {
    nb::class_<StridedPlacement, Kernel>(m, "StridedPlacement", "y[offset + i . strides] = x[i], 0 elsewhere.")
        .def("__init__", strided_placement_recipe.init(), "name"_a, "x"_a, "y"_a, "strides"_a, "offset"_a, "dtype"_a,
             "threads"_a = 0);
}

}  // namespace graphkit
