// Trilu: a triangle of a matrix.
#include <algorithm>
#include <cstring>
#include <optional>

#include "primitives/elements.h"
#include "runtime/bindings.h"
#include "runtime/operator_kernels.h"

namespace graphkit {
namespace {

// Keeps the upper (or lower) triangle of the last two axes; other elements become 0. The triangle is bounded by a
// diagonal: operand 1, one int64 of shape `k`; if absent, the main diagonal. Any element type. y may share the memory
// of x.
class Trilu final : public Kernel {
  public:
    Trilu(Dims x, bool upper, std::optional<Dims> k, ElementType type, int threads);

    std::vector<std::pair<int, int>> inplace() const override { return {{0, 0}}; }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    bool upper_;
};

}  // namespace

Trilu::Trilu(Dims x, bool upper, std::optional<Dims> k, ElementType type, int threads)
    : Kernel("Trilu", threads), upper_(upper) {
    outputs_ = {{"y", x, type}};
    inputs_ = {{"x", std::move(x), type}};
    if (k) {
        inputs_.push_back({"k", std::move(*k), ElementType::i64});
    }
    if (outputs_[0].shape.size() < 2) {
        throw NativeError(describe() + ": not a matrix");
    }
}

void Trilu::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    const Dims& shape = outputs_[0].shape;
    const std::int64_t columns = shape.back();
    const std::int64_t rows = shape[shape.size() - 2];
    const auto size = static_cast<std::int64_t>(size_of(outputs_[0].type));
    if (count(shape) == 0) {
        return;
    }
    const std::int64_t reach = rows + columns;  // diagonals beyond this cut off nothing
    const std::int64_t k =
        inputs_.size() > 1 ? std::clamp(*static_cast<const std::int64_t*>(inputs[1]), -reach, reach) : 0;
    const auto* x = static_cast<const std::byte*>(inputs[0]);
    auto* y = static_cast<std::byte*>(outputs[0]);
    const double cost = static_cast<double>(columns * size) / kBytesPerNanosecond + 3;
    parallel_for(threads(), count(shape) / columns, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            const std::int64_t diagonal = row % rows + k;
            const std::int64_t border = std::clamp<std::int64_t>(upper_ ? diagonal : diagonal + 1, 0, columns) * size;
            const std::int64_t whole = columns * size;
            const auto [first, last] = upper_ ? std::pair{border, whole} : std::pair{std::int64_t{0}, border};
            const auto [zeros, zeros_end] = upper_ ? std::pair{std::int64_t{0}, border} : std::pair{border, whole};
            std::byte* to = y + row * whole;
            if (x != y) {
                copy_bytes(to + first, x + row * whole + first, static_cast<std::size_t>(last - first));
            }
            std::memset(to + zeros, 0, static_cast<std::size_t>(zeros_end - zeros));
        }
    });
}

GRAPHKIT_KERNEL_READING("", Trilu) {
    const TensorSpec& x = node.input(0).tensor;
    OptionalDims k;
    if (node.has_input(1)) {
        k = node.input(1).tensor.shape;
    }
    return std::make_unique<Trilu>(x.shape, node.integer("upper") != 0, std::move(k), x.type, node.threads);
}

GRAPHKIT_BINDINGS(select) {
    nb::class_<Trilu, Kernel>(m, "Trilu")
        .def(
            "__init__",
            [](Trilu* self, Dims x, bool upper, OptionalDims k, Text dtype, int threads) {
                new (self) Trilu(std::move(x), upper, std::move(k), element_type(dtype), threads);
            },
            "x"_a, "upper"_a, "k"_a.none(), "dtype"_a, "threads"_a = 0);
}

}  // namespace graphkit
