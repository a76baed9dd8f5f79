// Index operands: read at run time, checked before they are used; negative ones count from the end.
#pragma once

#include <algorithm>
#include <atomic>
#include <limits>

#include "primitives/elements.h"
#include "primitives/index_signs.h"
#include "runtime/threads.h"

namespace graphkit {

// The smallest of several positions that threads find in any order.
class FirstOf {
  public:
    void found(std::int64_t position) {
        std::int64_t known = first_.load(std::memory_order_relaxed);
        while (position < known && !first_.compare_exchange_weak(known, position, std::memory_order_relaxed)) {
        }
    }
    bool any() const { return first() != kNone; }
    std::int64_t first() const { return first_.load(std::memory_order_relaxed); }

  private:
    static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
    std::atomic<std::int64_t> first_{kNone};
};

template <typename Index>
inline bool is_inside(Index index, std::int64_t size) {
    const auto wide = static_cast<std::uint64_t>(size);
    return static_cast<std::uint64_t>(index) + wide < 2 * wide;
}

template <typename Index>
inline std::int64_t from_front(Index index, std::int64_t size) {
    const auto wide = static_cast<std::int64_t>(index);
    return wide + ((wide >> 63) & size);  // without a branch, which would be hard to predict
}

[[noreturn]] inline void throw_index_error(const Kernel& kernel, std::int64_t position, std::int64_t value,
                                           std::size_t axis, std::int64_t size) {
    throw NativeError(kernel.describe() + ": index " + std::to_string(value) + " (element " + std::to_string(position) +
                      " of the indices) is outside axis " + std::to_string(axis) + ", which has " +
                      std::to_string(size) + " elements");
}

inline IndexSigns index_signs(const std::int32_t* indices, std::int64_t length, std::int64_t size) {
    return index_table().signs32(indices, length, size);
}

inline IndexSigns index_signs(const std::int64_t* indices, std::int64_t length, std::int64_t size) {
    return index_table().signs64(indices, length, size);
}

template <typename Index>
std::int64_t first_outside(const Index* indices, std::int64_t begin, std::int64_t end, std::int64_t size) {
    const auto inside = [&](Index index) { return is_inside(index, size); };
    return std::find_if_not(indices + begin, indices + end, inside) - indices;
}

template <typename Index>
void require_none(const FirstOf& bad, const Kernel& kernel, const Index* indices, std::size_t axis, std::int64_t size) {
    if (bad.any()) {
        throw_index_error(kernel, bad.first(), static_cast<std::int64_t>(indices[bad.first()]), axis, size);
    }
}

// Throws NativeError, which names the first wrong index, unless all indices are in [-size, size - 1].
template <typename Index>
void check_indices(const Kernel& kernel, const Index* indices, std::int64_t length, std::size_t axis,
                   std::int64_t size) {
    FirstOf bad;
    parallel_for(
        kernel.threads(), length, 0.5,
        [&](std::int64_t begin, std::int64_t end) {
            if (index_signs(indices + begin, end - begin, size).any_outside()) {
                bad.found(first_outside(indices, begin, end, size));
            }
        },
        1024);
    require_none(bad, kernel, indices, axis, size);
}

// Throws NativeError unless the operands of GatherElements or ScatterElements match: equal ranks, and no axis of the
// indices, except `axis`, is longer than that of x.
void require_fibres(const Kernel& kernel, const Dims& x, const Dims& indices, std::size_t axis);

// Tuples of indices into the leading axes of an array, after `batch_dims` axes that both operands share.
struct IndexTuples {
    std::int64_t tuples = 0;
    std::int64_t per_batch = 1;     // tuples of one batch
    std::int64_t batch_stride = 0;  // slices between batches
    std::size_t first_axis = 0;
    Dims sizes;    // of the axes that the tuples address
    Dims strides;  // in slices
    std::int64_t slice = 1;  // elements of a slice: product of the axes that are not addressed

    // Throws NativeError if the shapes do not match.
    IndexTuples() = default;
    IndexTuples(const Kernel& kernel, const Dims& x, const Dims& indices, std::int64_t batch_dims);

    // slices[t] = the number of the slice of x that tuple t addresses. Throws NativeError, which names the first wrong
    // index.
    void resolve(const Kernel& kernel, const std::int64_t* indices, std::int64_t* slices) const;
};

}  // namespace graphkit
