// MaxUnpool: writes elements to the positions from which max pooling took them.
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "primitives/elements.h"
#include "runtime/bindings.h"
#include "runtime/kernel.h"
#include "runtime/recipe.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// y = zeros, with x at the flat positions `indices`; any float type. x [N, C, ...], y [N, C, ...]. If positions are
// equal, the last element of a plane is kept. Throws NativeError for an index outside of y.
class MaxUnpool final : public Kernel {
  public:
    MaxUnpool(Dims x, Dims y, ElementType type, int threads);

    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    template <typename T>
    void run_as(const T* x, const std::int64_t* indices, T* y) const;

    std::int64_t planes_;
    std::int64_t from_;  // elements of a plane of x
    std::int64_t to_;    // elements of a plane of y
};

}  // namespace

MaxUnpool::MaxUnpool(Dims x, Dims y, ElementType type, int threads) : Kernel("MaxUnpool", threads) {
    inputs_ = {{"x", x, type}, {"indices", x, ElementType::i64}};
    outputs_ = {{"y", y, type}};
    if (x.size() < 2 || y.size() < 2 || x[0] != y[0] || x[1] != y[1]) {
        throw NativeError(describe() + ": batch or channels differ");
    }
    planes_ = x[0] * x[1];
    from_ = count(Dims(x.begin() + 2, x.end()));
    to_ = count(Dims(y.begin() + 2, y.end()));
}

template <typename T>
void MaxUnpool::run_as(const T* x, const std::int64_t* indices, T* y) const {
    // One thread writes a whole plane of y, which usually gets elements of the same plane of x only.
    std::atomic<bool> elsewhere{false};
    const double cost = static_cast<double>(to_ * sizeof(T)) / kBytesPerNanosecond + static_cast<double>(from_);
    parallel_for(threads(), planes_, cost, [&](std::int64_t begin, std::int64_t end) {
        bool outside = false;
        for (std::int64_t plane = begin; plane < end; ++plane) {
            T* const values = y + plane * to_;
            std::fill_n(values, to_, T{});
            for (std::int64_t i = plane * from_; i < (plane + 1) * from_; ++i) {
                const auto position = static_cast<std::uint64_t>(indices[i]) - static_cast<std::uint64_t>(plane * to_);
                if (position < static_cast<std::uint64_t>(to_)) {
                    values[position] = x[i];
                } else {
                    outside = true;
                }
            }
        }
        if (outside) {
            elsewhere.store(true, std::memory_order_relaxed);
        }
    });
    if (!elsewhere.load()) {
        return;
    }
    const std::int64_t size = planes_ * to_;
    for (std::int64_t i = 0; i < planes_ * from_; ++i) {
        if (indices[i] < 0 || indices[i] >= size) {
            throw NativeError(describe() + ": index " + std::to_string(indices[i]) + " (element " + std::to_string(i) +
                              " of the indices) is outside the result, which has " + std::to_string(size) +
                              " elements");
        }
    }
    std::fill_n(y, size, T{});
    for (std::int64_t i = 0; i < planes_ * from_; ++i) {
        y[indices[i]] = x[i];
    }
}

void MaxUnpool::run(const void* const* inputs, void* const* outputs, std::byte*) const {
    const auto* indices = static_cast<const std::int64_t*>(inputs[1]);
    const auto run_bits = [&](auto bits) {
        using T = decltype(bits);
        run_as(static_cast<const T*>(inputs[0]), indices, static_cast<T*>(outputs[0]));
    };
    switch (size_of(inputs_[0].type)) {
        case 2:
            return run_bits(std::uint16_t{});
        case 4:
            return run_bits(std::uint32_t{});
        case 8:
            return run_bits(std::uint64_t{});
        default:
            throw NativeError(describe() + ": a float type is expected");
    }
}

static const RecipeKind max_unpool_recipe(
    "MaxUnpool", +[](MaxUnpool* self, Dims x, Dims y, Text dtype, int threads) {
        new (self) MaxUnpool(std::move(x), std::move(y), element_type(dtype), threads);
    });

GRAPHKIT_BINDINGS(unpool, "pool") {
    nb::class_<MaxUnpool, Kernel>(m, "MaxUnpool")
        .def("__init__", max_unpool_recipe.init(), "x"_a, "y"_a, "dtype"_a, "threads"_a = 0);
}

}  // namespace graphkit
