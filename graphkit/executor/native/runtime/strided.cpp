#include "runtime/strided.h"

#include <cstring>
#include <utility>

namespace graphkit {
namespace {

using Counts = std::vector<std::int64_t>;

// A copy without axes of size 1, and with neighbouring axes merged where both arrays allow it.
struct StridedCopy {
    Counts shape, from, to;
    std::size_t item = 0;
};

StridedCopy merged(const StridedArray& source, const StridedArray& target) {
    StridedCopy made;
    made.item = target.item;
    for (std::size_t axis = 0; axis < target.shape.size(); ++axis) {
        const std::int64_t size = target.shape[axis], from = source.strides[axis], to = target.strides[axis];
        if (size == 1) {
            continue;
        }
        if (!made.shape.empty() && made.from.back() == from * size && made.to.back() == to * size) {
            made.shape.back() *= size;
            made.from.back() = from;
            made.to.back() = to;
        } else {
            made.shape.push_back(size);
            made.from.push_back(from);
            made.to.push_back(to);
        }
    }
    return made;
}

template <std::size_t item>
void copy_line(const std::byte* from, std::int64_t from_step, std::byte* to, std::int64_t to_step, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
        std::memcpy(to + i * to_step, from + i * from_step, item);
    }
}

void copy_innermost(const StridedCopy& copy, const std::byte* from, std::byte* to) {
    const std::int64_t count = copy.shape.back(), from_step = copy.from.back(), to_step = copy.to.back();
    const auto item = static_cast<std::int64_t>(copy.item);
    if (from_step == item && to_step == item) {
        std::memcpy(to, from, static_cast<std::size_t>(count) * copy.item);
        return;
    }
    switch (copy.item) {
        case 1:
            return copy_line<1>(from, from_step, to, to_step, count);
        case 2:
            return copy_line<2>(from, from_step, to, to_step, count);
        case 4:
            return copy_line<4>(from, from_step, to, to_step, count);
        case 8:
            return copy_line<8>(from, from_step, to, to_step, count);
        default:
            for (std::int64_t i = 0; i < count; ++i) {
                std::memcpy(to + i * to_step, from + i * from_step, copy.item);
            }
    }
}

void copy_axis(const StridedCopy& copy, std::size_t axis, const std::byte* from, std::byte* to) {
    if (axis + 1 == copy.shape.size()) {
        copy_innermost(copy, from, to);
        return;
    }
    for (std::int64_t i = 0; i < copy.shape[axis]; ++i) {
        copy_axis(copy, axis + 1, from + i * copy.from[axis], to + i * copy.to[axis]);
    }
}

// The first address of an array, and the address after its last element.
std::pair<const std::byte*, const std::byte*> extent(const StridedArray& array) {
    const std::byte *first = array.data, *last = array.data;
    for (std::size_t axis = 0; axis < array.shape.size(); ++axis) {
        const std::int64_t reach = (array.shape[axis] - 1) * array.strides[axis];
        (reach < 0 ? first : last) += reach;
    }
    return {first, last + array.item};
}

bool overlap(const StridedArray& a, const StridedArray& b) {
    const auto [a_first, a_last] = extent(a);
    const auto [b_first, b_last] = extent(b);
    return a_first < b_last && b_first < a_last;
}

void copy_apart(const StridedArray& source, const StridedArray& target) {
    const StridedCopy copy = merged(source, target);
    if (copy.shape.empty()) {
        std::memcpy(target.data, source.data, target.item);
    } else {
        copy_axis(copy, 0, source.data, target.data);
    }
}

}  // namespace

void copy_strided(const StridedArray& source, const StridedArray& target) {
    std::size_t bytes = target.item;
    for (const std::int64_t size : target.shape) {
        bytes *= static_cast<std::size_t>(size);
    }
    if (bytes == 0) {
        return;
    }
    if (!overlap(source, target)) {
        copy_apart(source, target);
        return;
    }
    std::vector<std::byte> elements(bytes);
    StridedArray between{elements.data(), target.shape, Counts(target.shape.size()), target.item};
    auto step = static_cast<std::int64_t>(target.item);
    for (std::size_t axis = between.shape.size(); axis-- > 0;) {
        between.strides[axis] = step;
        step *= between.shape[axis];
    }
    copy_apart(source, between);
    copy_apart(between, target);
}

}  // namespace graphkit
