#include "primitives/reduction.h"

#include <algorithm>
#include <limits>

#include "runtime/threads.h"

namespace graphkit {
namespace {

// Nanoseconds to read an element from beyond the near caches.
constexpr double kElementNanoseconds = 0.15;
// Elements of a piece. With at least kManyItems outputs or tiles, threads share these; else they share the pieces.
constexpr std::int64_t kPieceElements = 32768;
constexpr std::int64_t kManyItems = 32;
constexpr std::int64_t kMostShares = 64;

// Returns the result of a reduction over no elements.
template <typename T>
Accumulator<T> empty_reduction(Reduction reduction) {
    using Acc = Accumulator<T>;
    switch (reduction) {
        case Reduction::product:
            return 1;
        case Reduction::largest:
            if constexpr (std::is_integral_v<T>) {
                return std::numeric_limits<T>::min();
            } else {
                return -std::numeric_limits<Acc>::infinity();
            }
        case Reduction::smallest:
            if constexpr (std::is_integral_v<T>) {
                return std::numeric_limits<T>::max();
            } else {
                return std::numeric_limits<Acc>::infinity();
            }
        default:
            return 0;
    }
}

// into[c] = the reduction of into[c] and from[c], for c < width.
template <typename Acc>
void merge(Reduction reduction, Acc* into, const Acc* from, std::int64_t width) {
    const auto each = [&](auto&& combined) {
        for (std::int64_t c = 0; c < width; ++c) {
            into[c] = combined(into[c], from[c]);
        }
    };
    using Sum = std::conditional_t<std::is_integral_v<Acc>, std::uint64_t, Acc>;  // integers wrap around
    switch (reduction) {
        case Reduction::product:
            return each([](Acc a, Acc b) { return static_cast<Acc>(static_cast<Sum>(a) * static_cast<Sum>(b)); });
        case Reduction::largest:
            return each([](Acc a, Acc b) { return b > a || b != b ? b : a; });
        case Reduction::smallest:
            return each([](Acc a, Acc b) { return b < a || b != b ? b : a; });
        default:
            return each([](Acc a, Acc b) { return static_cast<Acc>(static_cast<Sum>(a) + static_cast<Sum>(b)); });
    }
}

// parts[0] = the reduction of all parts, in the order of reduce_pieces.
template <typename Acc>
void merge_tree(Reduction reduction, Acc* parts, std::int64_t size) {
    if (size > 1) {
        const std::int64_t middle = size / 2;
        merge_tree(reduction, parts, middle);
        merge_tree(reduction, parts + middle, size - middle);
        merge(reduction, parts, parts + middle, 1);
    }
}

}  // namespace

ReductionGeometry::ReductionGeometry(const Dims& shape, const std::vector<bool>& reduced) {
    const Dims strides = row_major(shape);
    struct Axis : Run {
        bool reduced;
    };
    std::vector<Axis> axes;
    for (std::size_t i = 0; i < shape.size(); ++i) {
        if (shape[i] == 1) {
            continue;
        }
        if (!axes.empty() && axes.back().reduced == reduced[i]) {
            axes.back().size *= shape[i];
            axes.back().stride = strides[i];
        } else {
            axes.push_back({{shape[i], strides[i]}, reduced[i]});
        }
    }
    for (const Axis& axis : axes) {
        (axis.reduced ? reduced_count : outputs) *= axis.size;
    }
    if (!axes.empty()) {
        along_row = axes.back().reduced;
        width = axes.back().size;
        axes.pop_back();
        if (!along_row && !axes.empty()) {
            rows = axes.back().size;
            row_stride = axes.back().stride;
            axes.pop_back();
        }
    }
    for (const Axis& axis : axes) {
        (axis.reduced ? slabs : kept).push_back(axis);
        (axis.reduced ? slab_count : kept_count) *= axis.size;
    }
}

std::int64_t ReductionGeometry::offset(const std::vector<Run>& runs, std::int64_t index) {
    std::int64_t at = 0;
    for (std::size_t i = runs.size(); i-- > 0;) {
        at += index % runs[i].size * runs[i].stride;
        index /= runs[i].size;
    }
    return at;
}

template <typename T>
Reducer<T>::Reducer(const ReductionGeometry& geometry, Reduction reduction)
    : geometry_(geometry), reduction_(reduction), functions_(reduction_table().reduction<T>(reduction)) {
    const ReductionGeometry& g = geometry_;
    if (g.outputs == 0 || g.reduced_count == 0) {
        return;
    }
    const std::int64_t columns = g.along_row ? 1 : std::min(g.width, kReductionTile);
    const std::int64_t length = g.along_row ? g.width : g.rows;
    tiles_ = g.along_row ? 1 : (g.width + kReductionTile - 1) / kReductionTile;
    part_size_ = std::min(length, std::max<std::int64_t>(1, kPieceElements / columns));
    parts_ = (length + part_size_ - 1) / part_size_;
    pieces_ = g.slab_count * parts_;
    const std::int64_t items = g.kept_count * tiles_;
    if (items < kManyItems && g.reduced_count * columns >= 2 * kPieceElements) {
        const std::int64_t worth = g.reduced_count * columns / kPieceElements;
        shares_ = std::min({pieces_, kMostShares, worth});
    }
}

template <typename T>
std::int64_t Reducer<T>::partial_count() const {
    if (shares_ == 1) {
        return 0;
    }
    return geometry_.kept_count * tiles_ * shares_ *
           (geometry_.along_row ? 1 : std::min(geometry_.width, kReductionTile));
}

// Reduces pieces [first, last) of the output tile at x, as a balanced tree.
template <typename T>
void Reducer<T>::reduce_pieces(const T* x, const Acc* shift, Acc* out, std::int64_t first, std::int64_t last,
                               std::int64_t tile, std::int64_t width) const {
    if (last - first > 1) {
        const bool together = geometry_.along_row && parts_ == 1 && geometry_.slabs.size() == 1 && shift == nullptr;
        if (together && last - first <= kReductionTile) {
            const std::int64_t stride = geometry_.slabs[0].stride;
            Acc rows[kReductionTile];
            functions_.rows(x + first * stride, last - first, stride, geometry_.width, nullptr, rows);
            merge_tree(reduction_, rows, last - first);
            *out = rows[0];
            return;
        }
        const std::int64_t middle = first + (last - first) / 2;
        reduce_pieces(x, shift, out, first, middle, tile, width);
        Acc other[kReductionTile];
        reduce_pieces(x, shift, other, middle, last, tile, width);
        merge(reduction_, out, other, width);
        return;
    }
    const ReductionGeometry& g = geometry_;
    const T* slab = x + ReductionGeometry::offset(g.slabs, first / parts_);
    const std::int64_t begin = first % parts_ * part_size_;
    if (g.along_row) {
        functions_.rows(slab + begin, 1, 0, std::min(part_size_, g.width - begin), shift, out);
    } else {
        functions_.columns(slab + begin * g.row_stride + tile * kReductionTile, std::min(part_size_, g.rows - begin),
                           g.row_stride, width, shift, out);
    }
}

template <typename T>
void Reducer<T>::run(const T* x, const Acc* shift, Acc* out, Acc* partial, int threads) const {
    const ReductionGeometry& g = geometry_;
    if (g.outputs == 0 || g.reduced_count == 0) {
        std::fill_n(out, g.outputs, empty_reduction<T>(reduction_));
        return;
    }
    const double cost =
        kElementNanoseconds * (reduction_ == Reduction::sum_exp ? 3 : 1) * static_cast<double>(sizeof(T)) / 4;
    if (g.along_row && pieces_ == 1 && g.kept.size() <= 1) {
        const std::int64_t stride = g.kept.empty() ? 0 : g.kept[0].stride;
        const double row_cost = 4 + static_cast<double>(g.width) * cost;
        parallel_for(
            threads, g.kept_count, row_cost,
            [&](std::int64_t begin, std::int64_t end) {
                functions_.rows(x + begin * stride, end - begin, stride, g.width,
                                shift == nullptr ? nullptr : shift + begin, out + begin);
            },
            16);
        return;
    }
    const std::int64_t tile_width = g.along_row ? 1 : std::min(g.width, kReductionTile);
    const std::int64_t columns = g.along_row ? 1 : g.width;
    const std::int64_t items = g.kept_count * tiles_;
    const double item_cost = 10 + static_cast<double>(g.reduced_count * tile_width) * cost;
    const auto reduce_item = [&](std::int64_t item, std::int64_t first, std::int64_t last, Acc* into) {
        const std::int64_t tile = item % tiles_;
        const std::int64_t at = item / tiles_ * columns + tile * kReductionTile;
        const std::int64_t width = std::min(tile_width, columns - tile * kReductionTile);
        const T* from = x + ReductionGeometry::offset(g.kept, item / tiles_);
        reduce_pieces(from, shift == nullptr ? nullptr : shift + at, into == nullptr ? out + at : into, first, last,
                      tile, width);
        return std::pair{at, width};
    };
    if (shares_ == 1) {
        parallel_for(threads, items, item_cost, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t item = begin; item < end; ++item) {
                reduce_item(item, 0, pieces_, nullptr);
            }
        });
        return;
    }
    const double share_cost = item_cost / static_cast<double>(shares_);
    parallel_for(threads, items * shares_, share_cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t task = begin; task < end; ++task) {
            const std::int64_t share = task % shares_;
            reduce_item(task / shares_, pieces_ * share / shares_, pieces_ * (share + 1) / shares_,
                        partial + task * tile_width);
        }
    });
    for (std::int64_t item = 0; item < items; ++item) {
        const std::int64_t tile = item % tiles_;
        const std::int64_t at = item / tiles_ * columns + tile * kReductionTile;
        const std::int64_t width = std::min(tile_width, columns - tile * kReductionTile);
        Acc* parts = partial + item * shares_ * tile_width;
        for (std::int64_t step = 1; step < shares_; step *= 2) {
            for (std::int64_t share = 0; share + step < shares_; share += 2 * step) {
                merge(reduction_, parts + share * tile_width, parts + (share + step) * tile_width, width);
            }
        }
        std::copy_n(parts, width, out + at);
    }
}

template class Reducer<float>;
template class Reducer<double>;
template class Reducer<Float16>;
template class Reducer<BFloat16>;
template class Reducer<std::int8_t>;
template class Reducer<std::uint8_t>;
template class Reducer<std::int32_t>;
template class Reducer<std::uint32_t>;
template class Reducer<std::int64_t>;
template class Reducer<std::uint64_t>;

}  // namespace graphkit
