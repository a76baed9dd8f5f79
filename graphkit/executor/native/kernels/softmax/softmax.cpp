#include "kernels/softmax/softmax.h"

#include "primitives/float_type.h"
#include "primitives/reduction_table.h"
#include "runtime/bindings.h"
#include "runtime/operator_kernels.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

constexpr double kElementNanoseconds = 0.5;
// Elements of a tile of columns, which fit into a near cache, and the least number of columns that fills cache lines.
constexpr std::int64_t kTileElements = 16384;
constexpr std::int64_t kFewestColumns = 32;

}  // namespace

Softmax::Softmax(const Dims& shape, std::int64_t axis, const std::string& type, bool log, int threads)
    : Kernel(log ? "LogSoftmax" : "Softmax", threads), log_(log), type_(float_type(type)) {
    const auto rank = static_cast<std::int64_t>(shape.size());
    if (axis < -rank || axis >= rank) {
        throw NativeError(name() + ": axis " + std::to_string(axis) + " is out of range for " + to_string(shape));
    }
    inputs_ = {{"x", shape, type_}};
    outputs_ = {{"y", shape, type_}};
    const auto at = shape.begin() + (axis < 0 ? axis + rank : axis);
    outer_ = count(Dims(shape.begin(), at));
    size_ = *at;
    inner_ = count(Dims(at + 1, shape.end()));
    const std::int64_t fitting = size_ == 0 ? kReductionTile : kTileElements / size_;
    tile_ = std::min({inner_, kReductionTile, std::max(fitting, kFewestColumns)});
}

std::size_t Softmax::scratch_bytes() const {
    if (!is_half(type_)) {
        return 0;
    }
    return static_cast<std::size_t>(std::max(threads(), 1)) *
           aligned(static_cast<std::size_t>(size_ * tile_) * sizeof(float));
}

template <typename T>
void Softmax::run_rows(const T* x, T* y, std::byte* scratch) const {
    const RowFunctions<Wide<T>>& rows = row_table().rows<T>();
    const auto function = log_ ? rows.log_softmax : rows.softmax;
    const double cost = 5 + kElementNanoseconds * static_cast<double>(size_);
    parallel_for(threads(), outer_, cost, [&](std::int64_t begin, std::int64_t end) {
        if constexpr (kIsHalf<T>) {
            auto* row = reinterpret_cast<float*>(
                scratch + thread_number() * aligned(static_cast<std::size_t>(size_) * sizeof(float)));
            for (std::int64_t i = begin; i < end; ++i) {
                function(widened(x + i * size_, row, size_), row, 1, size_);
                narrowed(row, y + i * size_, size_);
            }
        } else {
            function(x + begin * size_, y + begin * size_, end - begin, size_);
        }
    });
}

template <typename T>
void Softmax::run_columns(const T* x, T* y, std::byte* scratch) const {
    const RowFunctions<Wide<T>>& rows = row_table().rows<T>();
    const auto function = log_ ? rows.log_softmax_columns : rows.softmax_columns;
    const std::int64_t tiles = (inner_ + tile_ - 1) / tile_;
    const double cost = kElementNanoseconds * static_cast<double>(size_ * tile_);
    parallel_for(threads(), outer_ * tiles, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t item = begin; item < end; ++item) {
            const std::int64_t column = item % tiles * tile_;
            const std::int64_t width = std::min(tile_, inner_ - column);
            const std::int64_t at = item / tiles * size_ * inner_ + column;
            if constexpr (kIsHalf<T>) {
                auto* panel = reinterpret_cast<float*>(
                    scratch + thread_number() * aligned(static_cast<std::size_t>(size_ * tile_) * sizeof(float)));
                for (std::int64_t r = 0; r < size_; ++r) {
                    widened(x + at + r * inner_, panel + r * width, width);
                }
                function(panel, panel, size_, width, width);
                for (std::int64_t r = 0; r < size_; ++r) {
                    narrowed(panel + r * width, y + at + r * inner_, width);
                }
            } else {
                function(x + at, y + at, size_, inner_, width);
            }
        }
    });
}

void Softmax::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    if (outer_ == 0 || size_ == 0 || inner_ == 0) {
        return;
    }
    with_float_type(type_, [&]<typename T>() {
        const auto* x = static_cast<const T*>(inputs[0]);
        auto* y = static_cast<T*>(outputs[0]);
        inner_ == 1 ? run_rows(x, y, scratch) : run_columns(x, y, scratch);
    });
}

static std::unique_ptr<Kernel> softmax_of(const NodeSpec& node, bool log) {
    const TensorSpec& y = node.outputs[0];
    return std::make_unique<Softmax>(y.shape, node.integer("axis"), name_of(y.type), log, node.threads);
}

GRAPHKIT_KERNEL("", Softmax) {
    return softmax_of(node, false);
}

GRAPHKIT_KERNEL("", LogSoftmax) {
    return softmax_of(node, true);
}

GRAPHKIT_BINDINGS(softmax) {
    nb::class_<Softmax, Kernel>(m, "Softmax")
        .def(nb::init<const Dims&, std::int64_t, const std::string&, bool, int>(), "shape"_a, "axis"_a, "type"_a,
             "log"_a = false, "threads"_a = 0);
}

}  // namespace graphkit
