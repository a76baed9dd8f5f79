// SquaredDistances: the squared Euclidean distance of each row of x from each row of y.
#include "simd/vector.h"

#include "runtime/isa.h"

namespace graphkit {

// Computes the distances of the row x from `count` columns. `columns` is [features, room], and may be read in whole
// steps.
template <typename T>
using DistanceRow = void (*)(const T* x, const T* columns, std::int64_t features, std::int64_t room, std::int64_t count,
                             T* to);

struct DistanceTable {
    DistanceRow<float> f32;
    DistanceRow<double> f64;
    // `room` must be a multiple of this number of elements.
    std::int64_t step32, step64;
};

GRAPHKIT_ISA_TABLE(DistanceTable, distance_table);

namespace {

// Number of vectors of distances that are summed at the same time.
constexpr std::int64_t kVectors = 4;

template <typename T>
constexpr std::int64_t kStep = kVectors * kLanes<T>;

template <typename T>
void distance_row(const T* x, const T* columns, std::int64_t features, std::int64_t room, std::int64_t count, T* to) {
    for (std::int64_t at = 0; at < count; at += kStep<T>) {
        Vector<T> sums[kVectors] = {};
        for (std::int64_t f = 0; f < features; ++f) {
            const Vector<T> value = splat(x[f]);
            for (std::int64_t i = 0; i < kVectors; ++i) {
                const Vector<T> difference = load(columns + f * room + at + i * kLanes<T>) - value;
                sums[i] += difference * difference;
            }
        }
        for (std::int64_t i = 0; i < kVectors; ++i) {
            const std::int64_t begin = at + i * kLanes<T>;
            if (begin + kLanes<T> <= count) {
                store(to + begin, sums[i]);
            } else if (begin < count) {
                store_part(to + begin, sums[i], count - begin);
            }
        }
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(DistanceTable, distance_table) = {distance_row<float>, distance_row<double>, kStep<float>,
                                                      kStep<double>};

}  // namespace graphkit

#ifdef GRAPHKIT_ONCE
#include <algorithm>
#include <memory>

#include "runtime/operator_kernels.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

class SquaredDistances final : public Kernel {
  public:
    SquaredDistances(const TensorSpec& x, const TensorSpec& y, int threads);
    std::size_t scratch_bytes() const override;
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;

  private:
    template <typename T>
    void run_as(const T* x, const T* y, T* to, T* columns, DistanceRow<T> row) const;

    std::int64_t rows_, others_, features_, room_;
    ElementType type_;
    const DistanceTable& functions_;
};

SquaredDistances::SquaredDistances(const TensorSpec& x, const TensorSpec& y, int threads)
    : Kernel("SquaredDistances", threads), type_(x.type), functions_(distance_table()) {
    if (type_ != ElementType::f32 && type_ != ElementType::f64) {
        throw Unsupported("SquaredDistances of this type");
    }
    inputs_ = {{"x", x.shape, type_}, {"y", y.shape, type_}};
    if (x.shape.size() != 2 || y.shape.size() != 2 || x.shape[1] != y.shape[1]) {
        throw NativeError(describe() + ": rows of equal length are expected");
    }
    rows_ = x.shape[0];
    others_ = y.shape[0];
    features_ = x.shape[1];
    const std::int64_t step = type_ == ElementType::f32 ? functions_.step32 : functions_.step64;
    room_ = (others_ + step - 1) / step * step;
    outputs_ = {{"d", {rows_, others_}, type_}};
}

std::size_t SquaredDistances::scratch_bytes() const {
    return static_cast<std::size_t>(features_ * room_) * size_of(type_);
}

template <typename T>
void SquaredDistances::run_as(const T* x, const T* y, T* to, T* columns, DistanceRow<T> row) const {
    // Transposes y, so that a vector holds one feature of several rows.
    parallel_for(threads(), features_, static_cast<double>(room_), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t f = begin; f < end; ++f) {
            T* const column = columns + f * room_;
            for (std::int64_t i = 0; i < others_; ++i) {
                column[i] = y[i * features_ + f];
            }
            std::fill(column + others_, column + room_, T(0));
        }
    });
    const double cost = 5 + 0.1 * static_cast<double>(features_ * room_);
    parallel_for(threads(), rows_, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            row(x + i * features_, columns, features_, room_, others_, to + i * others_);
        }
    });
}

void SquaredDistances::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    const auto start = [&]<typename T>(T, DistanceRow<T> row) {
        run_as(static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]), static_cast<T*>(outputs[0]),
               reinterpret_cast<T*>(scratch), row);
    };
    if (type_ == ElementType::f32) {
        start(float{}, functions_.f32);
    } else {
        start(double{}, functions_.f64);
    }
}

}  // namespace

GRAPHKIT_KERNEL("ai.graphkit", SquaredDistances) {
    return std::make_unique<SquaredDistances>(node.input(0).tensor, node.input(1).tensor, node.threads);
}

}  // namespace graphkit
#endif
