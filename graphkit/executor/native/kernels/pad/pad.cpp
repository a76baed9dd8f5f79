// Padding in any mode: each axis has a table of the positions that it copies.
#include <array>
#include <optional>

#include "primitives/axis_gather.h"
#include "runtime/bindings.h"
#include "runtime/recipe.h"

namespace graphkit {
namespace {

// Adds elements around x, or removes some: see AxisGather for `maps`. If has_value, the fill value is operand 2, a
// scalar of x's type; else it is 0. Any element type. Operand 1 (the pads) is not read.
class Pad final : public Kernel {
  public:
    Pad(Dims x, const Maps& maps, Dims pads, std::optional<Dims> value, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    AxisGather copy_;
};

}  // namespace

Pad::Pad(Dims x, const Maps& maps, Dims pads, std::optional<Dims> value, ElementType type, int threads)
    : Kernel("Pad", threads) {
    Dims y;
    copy_ = AxisGather(x, maps, size_of(type), y);
    inputs_ = {{"x", std::move(x), type}, {"pads", std::move(pads), ElementType::i64, true}};
    if (value) {
        inputs_.push_back({"constant_value", std::move(*value), type});
        if (count(inputs_[2].shape) != 1) {
            throw NativeError(describe() + ": the fill value must be a scalar");
        }
    }
    outputs_ = {{"y", std::move(y), type}};
}

void Pad::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    constexpr std::array<std::byte, 16> kZero{};
    const auto* fill = inputs_.size() > 2 ? static_cast<const std::byte*>(inputs[2]) : kZero.data();
    copy_.run(threads(), static_cast<const std::byte*>(inputs[0]), static_cast<std::byte*>(outputs[0]), fill);
}

static const RecipeKind pad_recipe(
    "Pad", +[](Pad* self, Dims x, const Maps& maps, Dims pads, OptionalDims value, Text dtype, int threads) {
        new (self) Pad(std::move(x), maps, std::move(pads), std::move(value), element_type(dtype), threads);
    });

GRAPHKIT_BINDINGS(pad) {
    nb::class_<Pad, Kernel>(m, "Pad",
                            "maps: for each axis the positions to copy, -1: the fill value; None: all positions.")
        .def("__init__", pad_recipe.init(), "x"_a, "maps"_a, "pads"_a, "value"_a.none(), "dtype"_a, "threads"_a = 0);
}

}  // namespace graphkit
