// How the work of a kernel is cut into pieces: by its extents alone, never by the number of threads, so that each sum
// is made in one order.
#pragma once

#include <cstdint>
#include <vector>

namespace graphkit {

struct Range {
    std::int64_t begin = 0;
    std::int64_t size = 0;
};

// [0, items) as `parts` ranges, fewer where there are fewer grains; they begin at multiples of `grain`. Sizes differ by
// a grain at most.
std::vector<Range> cut(std::int64_t items, std::int64_t parts, std::int64_t grain = 1);

// The numbers of parts, powers of two up to `most`, that leave at least `least` items to each; 1 among them.
std::vector<std::int64_t> numbers_of_parts(std::int64_t items, std::int64_t least, std::int64_t most);

// The largest power of two that is not above `number`.
std::int64_t power_of_two(std::int64_t number);

}  // namespace graphkit
