// Compress: selects slices of an array along an axis by a vector of booleans.
#include <algorithm>
#include <cstdint>
#include <optional>

#include "primitives/elements.h"
#include "runtime/bindings.h"
#include "runtime/data_dependent.h"

namespace graphkit {
namespace {

constexpr std::int64_t kLine = 64;
// Bytes of the next run of slices that are prefetched while a run is copied.
constexpr std::int64_t kPrefetched = 256;

// x of any shape, condition [n] -> the selected slices of x; without an axis, the selected elements of the flattened x.
// Any element type. The condition may be shorter than the axis. It may be longer if it is false there.
class Compress final : public DataDependentKernel {
  public:
    Compress(ElementType x, std::optional<std::int64_t> axis, int threads)
        : DataDependentKernel("Compress", {x, ElementType::boolean}, {x}, threads), axis_(axis) {}
    void run(const std::vector<Operand>& inputs, RunMemory& memory) const override;

  private:
    std::optional<std::int64_t> axis_;
};

template <typename T>
void copy_elements(const std::byte* from, const std::int64_t* places, std::int64_t count, std::byte* to) {
    for (std::int64_t i = 0; i < count; ++i) {
        store_element(to + i * static_cast<std::int64_t>(sizeof(T)),
                      load_element<T>(from + places[i] * static_cast<std::int64_t>(sizeof(T))));
    }
}

// Copies the slices at `places`, which increase, to adjacent memory. Adjacent slices are copied together.
void copy_slices(const std::byte* from, const std::int64_t* places, std::int64_t count, std::int64_t slice,
                 std::byte* to) {
    for (std::int64_t i = 0; i < count;) {
        std::int64_t next = i + 1;
        while (next < count && places[next] == places[next - 1] + 1) {
            ++next;
        }
        const std::int64_t bytes = (next - i) * slice;
        if (next < count) {  // the processor's own prefetchers do not know where the next run begins
            const std::byte* const there = from + places[next] * slice;
            for (std::int64_t line = 0; line < std::min(slice, kPrefetched); line += kLine) {
                __builtin_prefetch(there + line);
            }
        }
        copy_bytes(to, from + places[i] * slice, static_cast<std::size_t>(bytes));
        to += bytes;
        i = next;
    }
}

}  // namespace

void Compress::run(const std::vector<Operand>& inputs, RunMemory& memory) const {
    const Operand &x = inputs[0], &condition = inputs[1];
    if (condition.shape.size() != 1) {
        throw NativeError(describe(inputs) + ": the condition must be a vector");
    }
    Dims shape = axis_ ? x.shape : Dims{x.elements()};
    const std::size_t axis = checked_axis(axis_.value_or(0), shape.size());
    const AroundAxis around(shape, axis);
    const auto* const holds = condition.as<std::uint8_t>();  // callers can pass bytes other than 0 and 1
    const std::int64_t length = condition.elements();
    auto* const places =
        reinterpret_cast<std::int64_t*>(memory.scratch(static_cast<std::size_t>(length + 1) * sizeof(std::int64_t)));
    std::int64_t found = 0;
    for (std::int64_t i = 0; i < length; ++i) {
        places[found] = i;
        found += holds[i] != 0 ? 1 : 0;
    }
    if (found > 0 && places[found - 1] >= around.size) {
        throw NativeError(describe(inputs) + ": the condition is true at position " +
                          std::to_string(places[found - 1]) + ", which is outside the axis");
    }
    shape[axis] = found;
    auto* const y = static_cast<std::byte*>(memory.result(0, shape));
    const auto item = static_cast<std::int64_t>(size_of(this->inputs()[0]));
    const std::int64_t slice = around.inner * item;
    if (y == nullptr || found * slice == 0) {
        return;
    }
    const auto* const from = static_cast<const std::byte*>(x.data);
    const double cost = 1 + 2 * static_cast<double>(slice) / kBytesPerNanosecond;
    parallel_for(threads(), around.outer * found, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end;) {
            const std::byte* const source = from + row / found * around.size * slice;
            const std::int64_t first = row % found;
            const std::int64_t count = std::min(end - row, found - first);
            if (around.inner == 1) {
                with_element(static_cast<std::size_t>(item), [&](auto element) {
                    copy_elements<decltype(element)>(source, places + first, count, y + row * slice);
                });
            } else {
                copy_slices(source, places + first, count, slice, y + row * slice);
            }
            row += count;
        }
    });
}

GRAPHKIT_BINDINGS(compress, "data_dependent_call") {
    nb::class_<Compress, DataDependentKernel>(m, "Compress")
        .def(
            "__init__",
            [](Compress* self, Text dtype, std::optional<std::int64_t> axis, int threads) {
                new (self) Compress(element_type(dtype), axis, threads);
            },
            "dtype"_a, "axis"_a.none(), "threads"_a = 0);
}

}  // namespace graphkit
