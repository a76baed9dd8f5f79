#include "kernels/pointwise/pointwise_layout.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace graphkit {
namespace {

constexpr std::size_t kMaxAxes = 16;
// Rows of at least this length are processed one by one: kLongRow if they are whole vectors, kLongUnevenRow otherwise,
// since the last vector then needs a block of its own.
constexpr std::int64_t kLongRow = 192;
constexpr std::int64_t kLongUnevenRow = 768;
constexpr std::int64_t kEven = 16;

Dims strides_of(const Dims& input, const Dims& shape) {
    if (input.size() > shape.size()) {
        throw NativeError("an array " + to_string(input) + " does not broadcast to " + to_string(shape));
    }
    const Dims own = row_major(input);
    Dims strides(shape.size(), 0);
    const std::size_t lead = shape.size() - input.size();
    for (std::size_t axis = 0; axis < input.size(); ++axis) {
        if (input[axis] == shape[lead + axis]) {
            strides[lead + axis] = own[axis];
        } else if (input[axis] != 1) {
            throw NativeError("an array " + to_string(input) + " does not broadcast to " + to_string(shape));
        }
    }
    return strides;
}

template <typename T>
void gather(const Loops& loops, std::size_t i, const std::byte* from, std::byte* to, std::int64_t position,
            std::int64_t count) {
    const std::int64_t row = loops.row();
    const Dims& strides = loops.strides[i];
    const std::size_t outer = loops.sizes.size() - 1;
    std::array<std::int64_t, kMaxAxes> index{};
    std::int64_t offset = 0;
    std::int64_t rest = position / row;
    for (std::size_t axis = outer; axis-- > 0;) {
        index[axis] = rest % loops.sizes[axis];
        offset += index[axis] * strides[axis];
        rest /= loops.sizes[axis];
    }
    const T* source = reinterpret_cast<const T*>(from);
    T* target = reinterpret_cast<T*>(to);
    std::int64_t column = position % row;
    while (count > 0) {
        const std::int64_t run = std::min(count, row - column);
        if (strides[outer] == 0) {
            std::fill_n(target, run, source[offset]);
        } else {
            std::copy_n(source + offset + column, run, target);
        }
        target += run;
        count -= run;
        column = 0;
        for (std::size_t axis = outer; axis-- > 0;) {
            offset += strides[axis];
            if (++index[axis] < loops.sizes[axis]) {
                break;
            }
            offset -= strides[axis] * loops.sizes[axis];
            index[axis] = 0;
        }
    }
}

}  // namespace

std::int64_t Loops::row_offset(std::size_t i, std::int64_t number) const {
    std::int64_t offset = 0;
    for (std::size_t axis = sizes.size() - 1; axis-- > 1;) {
        offset += number % sizes[axis] * strides[i][axis];
        number /= sizes[axis];
    }
    return sizes.size() > 1 ? offset + number * strides[i][0] : offset;
}

bool Loops::is_periodic(std::size_t i) const {
    return std::all_of(strides[i].begin(), strides[i].end() - 1, [](std::int64_t stride) { return stride == 0; });
}

Loops make_loops(const Dims& shape, const std::vector<Dims>& inputs) {
    Loops loops;
    loops.count = count(shape);
    std::vector<Dims> strides;
    for (const Dims& input : inputs) {
        strides.push_back(strides_of(input, shape));
    }
    loops.strides.assign(inputs.size(), {});
    // Beginning at the last axis: an axis is merged with the next one if the strides of all inputs allow it.
    for (std::size_t axis = shape.size(); axis-- > 0;) {
        if (shape[axis] == 1) {
            continue;
        }
        const bool joins = !loops.sizes.empty() && [&] {
            for (std::size_t i = 0; i < inputs.size(); ++i) {
                if (strides[i][axis] != loops.strides[i].front() * loops.sizes.front()) {
                    return false;
                }
            }
            return true;
        }();
        if (joins) {
            loops.sizes.front() *= shape[axis];
            continue;
        }
        loops.sizes.insert(loops.sizes.begin(), shape[axis]);
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            loops.strides[i].insert(loops.strides[i].begin(), strides[i][axis]);
        }
    }
    if (loops.sizes.empty()) {
        loops.sizes = {1};
        loops.strides.assign(inputs.size(), {0});
    }
    if (loops.sizes.size() > kMaxAxes) {
        throw Unsupported("broadcasting over more than " + std::to_string(kMaxAxes) + " axes");
    }
    const std::int64_t least = loops.row() % kEven == 0 ? kLongRow : kLongUnevenRow;
    loops.by_rows = loops.sizes.size() > 1 && loops.row() >= least;
    const Dims whole = row_major(loops.sizes);
    for (const Dims& own : loops.strides) {
        if (std::all_of(own.begin(), own.end(), [](std::int64_t stride) { return stride == 0; })) {
            loops.access.push_back(Access::scalar);
        } else if (own == whole) {
            loops.access.push_back(Access::stream);
        } else if (!loops.by_rows) {
            loops.access.push_back(Access::gathered);
        } else {
            loops.access.push_back(own.back() == 0 ? Access::row : Access::stream);
        }
    }
    return loops;
}

void gather_block(const Loops& loops, std::size_t i, std::size_t element, const std::byte* from, std::byte* to,
                  std::int64_t position, std::int64_t count) {
    switch (element) {
        case 1:
            return gather<std::uint8_t>(loops, i, from, to, position, count);
        case 2:
            return gather<std::uint16_t>(loops, i, from, to, position, count);
        case 4:
            return gather<std::uint32_t>(loops, i, from, to, position, count);
        default:
            return gather<std::uint64_t>(loops, i, from, to, position, count);
    }
}

}  // namespace graphkit
