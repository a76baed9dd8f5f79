#include "primitives/partition.h"

#include <algorithm>
#include <bit>

namespace graphkit {

std::vector<Range> cut(std::int64_t items, std::int64_t parts, std::int64_t grain) {
    const std::int64_t grains = (items + grain - 1) / grain;
    parts = std::max<std::int64_t>(1, std::min(parts, grains));
    std::vector<Range> ranges;
    for (std::int64_t part = 0; part < parts; ++part) {
        const std::int64_t begin = grains * part / parts * grain;
        const std::int64_t end = std::min(items, grains * (part + 1) / parts * grain);
        ranges.push_back({begin, end - begin});
    }
    return ranges;
}

std::vector<std::int64_t> numbers_of_parts(std::int64_t items, std::int64_t least, std::int64_t most) {
    std::vector<std::int64_t> parts{1};
    while (parts.back() * 2 <= most && parts.back() * 2 * least <= items) {
        parts.push_back(parts.back() * 2);
    }
    return parts;
}

std::int64_t power_of_two(std::int64_t number) {
    return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(number, 1))));
}

}  // namespace graphkit
