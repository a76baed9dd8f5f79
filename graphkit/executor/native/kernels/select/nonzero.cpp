// NonZero: the positions of elements that are not 0.
#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "primitives/elements.h"
#include "runtime/bindings.h"
#include "runtime/data_dependent.h"

namespace graphkit {
namespace {

// x of any shape -> int64 [rank, count], in row-major order. NaN counts as nonzero, -0 as zero.
class NonZero final : public DataDependentKernel {
  public:
    NonZero(ElementType x, int threads) : DataDependentKernel("NonZero", {x}, {ElementType::i64}, threads) {}
    void run(const std::vector<Operand>& inputs, RunMemory& memory) const override;

  private:
    template <typename T>
    void run_as(const Operand& x, RunMemory& memory) const;
};

// Number of elements that one thread examines at a time.
constexpr std::int64_t kChunk = std::int64_t{1} << 15;
// Number of positions that are collected before they are written.
constexpr std::int64_t kBlock = 1024;

// Whether an element is not 0.
template <typename T>
bool is_set(T x) {
    return x != 0;
}
bool is_set(Float16 x) {
    return (x.bits & 0x7fff) != 0;
}
bool is_set(BFloat16 x) {
    return (x.bits & 0x7fff) != 0;
}

// Writes the coordinates of ascending positions. Consecutive positions mostly differ in the last coordinate only.
class Coordinates {
  public:
    Coordinates(const Dims& shape, std::int64_t* to, std::int64_t found) : shape_(shape), to_(to), found_(found) {}

    // Writes the positions base + places[i] as results number `at` and following.
    void write(std::int64_t base, const std::int32_t* places, std::int64_t length, std::int64_t at) {
        const std::size_t last = shape_.size() - 1;
        std::int64_t* const final = to_ + static_cast<std::int64_t>(last) * found_ + at;
        for (std::int64_t i = 0; i < length;) {
            if (base + places[i] >= row_end_) {
                enter(base + places[i]);
            }
            // The positions in one row of the last axis.
            const std::int64_t start = row_end_ - shape_[last];
            std::int64_t end = i;
            for (; end < length && base + places[end] < row_end_; ++end) {
                final[end] = base + places[end] - start;
            }
            for (std::size_t axis = 0; axis < last; ++axis) {
                std::fill(to_ + static_cast<std::int64_t>(axis) * found_ + at + i,
                          to_ + static_cast<std::int64_t>(axis) * found_ + at + end, outer_[axis]);
            }
            i = end;
        }
    }

  private:
    void enter(std::int64_t place) {
        std::int64_t row = place / shape_.back();
        row_end_ = (row + 1) * shape_.back();
        outer_.resize(shape_.size());
        for (std::size_t axis = shape_.size() - 1; axis-- > 0;) {
            outer_[axis] = row % shape_[axis];
            row /= shape_[axis];
        }
    }

    const Dims& shape_;
    std::int64_t* to_;
    std::int64_t found_;
    std::int64_t row_end_ = -1;  // end of the row to which the coordinates `outer_` belong
    Dims outer_;
};

}  // namespace

template <typename T>
void NonZero::run_as(const Operand& x, RunMemory& memory) const {
    const T* const data = x.as<T>();
    const std::int64_t size = x.elements();
    const std::int64_t chunks = (size + kChunk - 1) / kChunk;
    auto* const counts =
        reinterpret_cast<std::int64_t*>(memory.scratch(static_cast<std::size_t>(chunks + 1) * sizeof(std::int64_t)));
    const auto work = static_cast<double>(size);
    const int wanted = threads_for(threads(), work);
    for_each_chunk(wanted, chunks, 0.2 * work, [&](std::int64_t chunk) {
        const T* const from = data + chunk * kChunk;
        const std::int64_t length = std::min(kChunk, size - chunk * kChunk);
        std::int64_t total = 0;
        for (std::int64_t block = 0; block < length; block += 128) {  // byte sums vectorise best
            std::uint8_t set = 0;
            for (std::int64_t i = block; i < std::min(length, block + 128); ++i) {
                set = static_cast<std::uint8_t>(set + (is_set(from[i]) ? 1 : 0));
            }
            total += set;
        }
        counts[chunk + 1] = total;
    });
    counts[0] = 0;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        counts[chunk + 1] += counts[chunk];
    }
    const std::int64_t found = counts[chunks];
    const auto rank = static_cast<std::int64_t>(x.shape.size());
    auto* const y = static_cast<std::int64_t*>(memory.result(0, {rank, found}));
    if (y == nullptr || rank == 0) {
        return;
    }
    for_each_chunk(wanted, chunks, work, [&](std::int64_t chunk) {
        Coordinates coordinates(x.shape, y, found);
        std::array<std::int32_t, kBlock> places;
        const std::int64_t end = std::min(size, (chunk + 1) * kChunk);
        std::int64_t at = counts[chunk];
        for (std::int64_t begin = chunk * kChunk; begin < end && at < counts[chunk + 1]; begin += kBlock) {
            const auto length = static_cast<std::int32_t>(std::min(kBlock, end - begin));
            std::size_t held = 0;
            for (std::int32_t i = 0; i < length; ++i) {
                places[held] = i;
                held += is_set(data[begin + i]) ? 1 : 0;
            }
            coordinates.write(begin, places.data(), static_cast<std::int64_t>(held), at);
            at += static_cast<std::int64_t>(held);
        }
    });
}

void NonZero::run(const std::vector<Operand>& inputs, RunMemory& memory) const {
    with_type(this->inputs()[0], [&](auto element) {
        using T = decltype(element);
        // Callers can pass arrays of bool with bytes other than 0 and 1.
        run_as<std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>>(inputs[0], memory);
    });
}

GRAPHKIT_BINDINGS(nonzero, "data_dependent_call") {
    nb::class_<NonZero, DataDependentKernel>(m, "NonZero")
        .def(
            "__init__",
            [](NonZero* self, Text dtype, int threads) { new (self) NonZero(element_type(dtype), threads); }, "dtype"_a,
            "threads"_a = 0);
}

}  // namespace graphkit
