// Division of a kernel's work into pieces. It depends on the sizes only, never on the number of threads, so that each
// sum is computed in a fixed order.
#pragma once

#include <cstdint>
#include <vector>

namespace graphkit {

struct Range {
    std::int64_t begin = 0;
    std::int64_t size = 0;
};

// Divides [0, items) into `parts` ranges, or fewer if there are fewer grains. Ranges begin at multiples of `grain`;
// their sizes differ by at most one grain.
std::vector<Range> cut(std::int64_t items, std::int64_t parts, std::int64_t grain = 1);

// Returns the powers of two up to `most` into which the items can be divided with at least `least` items in each part.
// 1 is always included.
std::vector<std::int64_t> numbers_of_parts(std::int64_t items, std::int64_t least, std::int64_t most);

// Returns the largest power of two that is at most `number`.
std::int64_t power_of_two(std::int64_t number);

}  // namespace graphkit
