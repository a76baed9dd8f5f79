// Resizing to nearest elements.
#include "primitives/axis_gather.h"
#include "runtime/bindings.h"
#include "runtime/recipe.h"

namespace graphkit {
namespace {

// Every element of y is an element of x, or the fill value, given by its bytes. Any element type.
class ResizeNearest final : public Kernel {
  public:
    ResizeNearest(Dims x, const Maps& maps, const std::string& fill, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    AxisGather copy_;
    std::string fill_;
};

}  // namespace

ResizeNearest::ResizeNearest(Dims x, const Maps& maps, const std::string& fill, ElementType type, int threads)
    : Kernel("Resize", threads), fill_(fill) {
    Dims y;
    copy_ = AxisGather(x, maps, size_of(type), y);
    inputs_ = {{"x", std::move(x), type}};
    outputs_ = {{"y", std::move(y), type}};
    if (fill_.size() != size_of(type)) {
        throw NativeError(describe() + ": the fill value has " + std::to_string(fill_.size()) + " bytes");
    }
}

void ResizeNearest::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    copy_.run(threads(), static_cast<const std::byte*>(inputs[0]), static_cast<std::byte*>(outputs[0]),
              reinterpret_cast<const std::byte*>(fill_.data()));
}

static const RecipeKind resize_nearest_recipe(
    "ResizeNearest", +[](ResizeNearest* self, Dims x, const Maps& maps, const RawBytes& fill, Text dtype, int threads) {
        new (self) ResizeNearest(std::move(x), maps, fill.data, element_type(dtype), threads);
    });

GRAPHKIT_BINDINGS(resize_nearest) {
    nb::class_<ResizeNearest, Kernel>(m, "ResizeNearest", "maps: see Pad; fill: the bytes of one element.")
        .def("__init__", resize_nearest_recipe.init(), "x"_a, "maps"_a, "fill"_a, "dtype"_a, "threads"_a = 0);
}

}  // namespace graphkit
