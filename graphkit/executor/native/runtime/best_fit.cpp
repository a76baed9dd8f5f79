// Best-fit allocation of blocks of the arena, in order of time. It computes the same as `_sweep` in
// graphkit/executor/memory/planner.py.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "runtime/bindings.h"

namespace graphkit {
namespace {

// The free ranges below `end`. Adjacent ranges are merged.
class FreeBlocks {
  public:
    // Returns the offset of `size` bytes in the smallest range that is large enough. If there is none, the arena grows.
    std::int64_t take(std::int64_t size) {
        const auto found = by_size_.lower_bound({size, std::numeric_limits<std::int64_t>::min()});
        if (found != by_size_.end()) {
            const auto [bytes, offset] = *found;
            remove(offset);
            if (bytes > size) {
                insert(offset + size, bytes - size);
            }
            return offset;
        }
        std::int64_t offset = end_;
        if (!by_offset_.empty()) {
            const auto [last, bytes] = *by_offset_.rbegin();
            if (last + bytes == end_) {
                offset = last;
                remove(last);
            }
        }
        end_ = offset + size;
        return offset;
    }

    // Frees a range, and merges it with adjacent free ranges.
    void give(std::int64_t offset, std::int64_t size) {
        const auto next = by_offset_.find(offset + size);
        if (next != by_offset_.end()) {
            size += next->second;
            remove(next->first);
        }
        const auto behind = by_offset_.lower_bound(offset);
        if (behind != by_offset_.begin()) {
            const auto [before, bytes] = *std::prev(behind);
            if (before + bytes == offset) {
                remove(before);
                offset = before;
                size += bytes;
            }
        }
        insert(offset, size);
    }

    std::int64_t end() const { return end_; }

  private:
    void insert(std::int64_t offset, std::int64_t size) {
        by_offset_[offset] = size;
        by_size_.insert({size, offset});
    }

    void remove(std::int64_t offset) {
        const auto found = by_offset_.find(offset);
        by_size_.erase({found->second, offset});
        by_offset_.erase(found);
    }

    std::int64_t end_ = 0;
    std::map<std::int64_t, std::int64_t> by_offset_;            // offset -> size
    std::set<std::pair<std::int64_t, std::int64_t>> by_size_;  // (size, offset)
};

struct Span {
    std::int64_t size;
    std::int64_t start;
    std::int64_t end;
};

// Returns the offset of each block, and the size of the arena. The offset of an empty block is 0.
std::pair<std::vector<std::int64_t>, std::int64_t> best_fit(
    const std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>>& blocks, bool backwards) {
    std::vector<Span> spans;
    std::vector<std::size_t> starts;
    for (const auto& [size, first, last] : blocks) {
        if (size > 0) {
            starts.push_back(spans.size());
        }
        spans.push_back(backwards ? Span{size, -last, -first} : Span{size, first, last});
    }
    std::vector<std::size_t> ends = starts;
    std::stable_sort(starts.begin(), starts.end(), [&](std::size_t a, std::size_t b) {
        return std::pair(spans[a].start, -spans[a].size) < std::pair(spans[b].start, -spans[b].size);
    });
    std::stable_sort(ends.begin(), ends.end(),
                     [&](std::size_t a, std::size_t b) { return spans[a].end < spans[b].end; });
    FreeBlocks free;
    std::vector<std::int64_t> offsets(blocks.size(), 0);
    auto done = ends.begin();
    for (const std::size_t block : starts) {
        for (; spans[*done].end < spans[block].start; ++done) {
            free.give(offsets[*done], spans[*done].size);
        }
        offsets[block] = free.take(spans[block].size);
    }
    return {std::move(offsets), free.end()};
}

// Places blocks one by one, each at the lowest offset at which it overlaps no placed block that is live at a common
// step. `order`: the blocks to place. Returns the offset of each block, and the size of the arena. The offset of a
// block that is not placed is 0.
std::pair<std::vector<std::int64_t>, std::int64_t> first_fit(
    const std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>>& blocks,
    const std::vector<std::size_t>& order) {
    struct Placed {
        std::int64_t begin;
        std::int64_t end;
        std::int64_t first;
        std::int64_t last;
    };
    std::vector<Placed> placed;  // sorted by offset
    placed.reserve(order.size());
    std::vector<std::int64_t> offsets(blocks.size(), 0);
    std::int64_t arena = 0;
    for (const std::size_t block : order) {
        const auto [size, first, last] = blocks.at(block);
        std::int64_t offset = 0;
        for (const Placed& other : placed) {
            if (other.first > last || other.last < first) {
                continue;
            }
            if (other.begin - offset >= size) {
                break;
            }
            offset = std::max(offset, other.end);
        }
        const Placed found{offset, offset + size, first, last};
        const auto behind = [](const Placed& a, const Placed& b) { return a.begin < b.begin; };
        placed.insert(std::upper_bound(placed.begin(), placed.end(), found, behind), found);
        offsets[block] = offset;
        arena = std::max(arena, offset + size);
    }
    return {std::move(offsets), arena};
}

}  // namespace

GRAPHKIT_BINDINGS(best_fit) {
    m.def("first_fit", &first_fit, "blocks"_a, "order"_a,
          "Place the blocks (size, first step, last step) in this order by first fit. Return the offset of each block, "
          "and the size of the arena.");
    m.def("best_fit", &best_fit, "blocks"_a, "backwards"_a,
          "Return the offset of each block (size, first step, last step), and the size of the arena.");
}

}  // namespace graphkit
