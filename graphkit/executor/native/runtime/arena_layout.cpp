#include "runtime/arena_layout.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>

#include "runtime/bindings.h"

namespace graphkit {
namespace {

// Free ranges below `end`, by offset. Adjacent free ranges are merged. There are few at one time, so that a list is
// faster than a tree.
class FreeRanges {
  public:
    // Returns the offset of `bytes` bytes in the smallest free range that holds them; of equal ones, in the first. If
    // there is none, the arena grows.
    std::int64_t take(std::int64_t bytes) {
        auto best = ranges_.end();
        for (auto range = ranges_.begin(); range != ranges_.end(); ++range) {
            if (range->bytes >= bytes && (best == ranges_.end() || range->bytes < best->bytes)) {
                best = range;
            }
        }
        std::int64_t offset = end_;
        if (best != ranges_.end()) {
            offset = best->offset;
            best->offset += bytes;
            best->bytes -= bytes;
            if (best->bytes == 0) {
                ranges_.erase(best);
            }
            return offset;
        }
        if (!ranges_.empty() && ranges_.back().offset + ranges_.back().bytes == end_) {
            offset = ranges_.back().offset;
            ranges_.pop_back();
        }
        end_ = offset + bytes;
        return offset;
    }

    void give(std::int64_t offset, std::int64_t bytes) {
        const auto behind =
            std::partition_point(ranges_.begin(), ranges_.end(), [&](const Range& r) { return r.offset < offset; });
        const bool joins_next = behind != ranges_.end() && behind->offset == offset + bytes;
        if (behind != ranges_.begin() && std::prev(behind)->offset + std::prev(behind)->bytes == offset) {
            std::prev(behind)->bytes += bytes + (joins_next ? behind->bytes : 0);
            if (joins_next) {
                ranges_.erase(behind);
            }
        } else if (joins_next) {
            *behind = {offset, behind->bytes + bytes};
        } else {
            ranges_.insert(behind, {offset, bytes});
        }
    }

    std::int64_t end() const { return end_; }

  private:
    struct Range {
        std::int64_t offset;
        std::int64_t bytes;
    };

    std::int64_t end_ = 0;
    std::vector<Range> ranges_;
};

}  // namespace

// The memory of one request, or of a chain of requests that reuse each other's memory in place.
struct MemoryRequests::Block {
    std::int64_t bytes;
    std::int64_t first;
    std::int64_t last;
    std::int64_t forwards = 0;  // its offset in the sweep forwards
    std::int64_t backwards = 0;
};

MemoryRequests::MemoryRequests(std::vector<MemoryRequest> requests)
    : requests_(std::move(requests)), order_(requests_.size()) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::stable_sort(order_.begin(), order_.end(),
                     [&](std::size_t a, std::size_t b) { return requests_[a].first < requests_[b].first; });
}

// Assigns a block to each request. At most one later request takes over the memory of a request. The blocks are in the
// order of their first steps.
std::vector<MemoryRequests::Block> MemoryRequests::chain(const std::vector<std::int64_t>& bytes,
                                                         std::vector<std::size_t>& owner) const {
    std::vector<Block> blocks;
    blocks.reserve(requests_.size());
    owner.resize(requests_.size());
    std::vector<bool> taken(requests_.size(), false);
    for (const std::size_t index : order_) {
        const MemoryRequest& request = requests_[index];
        owner[index] = blocks.size();
        for (const std::size_t candidate : request.inplace) {
            const MemoryRequest& source = requests_[candidate];
            const bool fits =
                bytes[index] > 0 && bytes[candidate] > 0 && blocks[owner[candidate]].bytes >= bytes[index];
            if (fits && !taken[candidate] && source.last == request.first && request.first > source.first) {
                taken[candidate] = true;
                owner[index] = owner[candidate];
                blocks[owner[index]].last = request.last;
                break;
            }
        }
        if (owner[index] == blocks.size()) {
            const std::size_t size = aligned(static_cast<std::size_t>(bytes[index]));
            blocks.push_back({static_cast<std::int64_t>(size), request.first, request.last});
        }
    }
    return blocks;
}

namespace {

struct Sweep {
    std::int64_t arena_bytes;
    std::int64_t peak_bytes;  // of the blocks in use at one time: no arena is smaller
};

// Places blocks in the order of `starts`, and frees them in the reverse order of `ends`. `start` and `end` return the
// time of a block, and `offset` its offset, which is written.
template <typename Block, typename Start, typename End, typename Offset>
Sweep sweep(const std::vector<Block*>& starts, const std::vector<Block*>& ends, Start start, End end, Offset offset) {
    FreeRanges free;
    std::int64_t used = 0;
    std::int64_t peak = 0;
    auto done = ends.rbegin();
    for (Block* block : starts) {
        for (; end(**done) < start(*block); ++done) {
            free.give(offset(**done), (*done)->bytes);
            used -= (*done)->bytes;
        }
        offset(*block) = free.take(block->bytes);
        used += block->bytes;
        peak = std::max(peak, used);
    }
    return {free.end(), peak};
}

}  // namespace

ArenaLayout MemoryRequests::lay_out(const std::vector<std::int64_t>& bytes) const {
    if (bytes.size() != requests_.size()) {
        throw NativeError("memory requests: as many sizes as requests are needed");
    }
    std::vector<std::size_t> owner;
    std::vector<Block> blocks = chain(bytes, owner);
    std::vector<Block*> by_first;
    by_first.reserve(blocks.size());
    for (Block& block : blocks) {
        if (block.bytes > 0) {
            by_first.push_back(&block);
        }
    }
    std::vector<Block*> by_last = by_first;
    // Of blocks that start at one step, the largest comes first. If they are equal, so does the earlier one.
    std::sort(by_first.begin(), by_first.end(), [](const Block* a, const Block* b) {
        return std::tuple(a->first, -a->bytes, a) < std::tuple(b->first, -b->bytes, b);
    });
    std::sort(by_last.begin(), by_last.end(), [](const Block* a, const Block* b) {
        return std::tuple(-a->last, -a->bytes, a) < std::tuple(-b->last, -b->bytes, b);
    });
    const Sweep forwards = sweep(
        by_first, by_last, [](const Block& block) { return block.first; },
        [](const Block& block) { return block.last; }, [](Block& block) -> std::int64_t& { return block.forwards; });
    ArenaLayout layout;
    layout.arena_bytes = forwards.arena_bytes;
    if (forwards.arena_bytes > forwards.peak_bytes) {
        const Sweep backwards = sweep(
            by_last, by_first, [](const Block& block) { return -block.last; },
            [](const Block& block) { return -block.first; },
            [](Block& block) -> std::int64_t& { return block.backwards; });
        layout.arena_bytes = std::min(layout.arena_bytes, backwards.arena_bytes);
    }
    const bool is_forwards = layout.arena_bytes == forwards.arena_bytes;
    layout.offsets.reserve(requests_.size());
    for (std::size_t i = 0; i < requests_.size(); ++i) {
        const Block& block = blocks[owner[i]];
        layout.offsets.push_back(bytes[i] > 0 ? (is_forwards ? block.forwards : block.backwards) : 0);
    }
    return layout;
}

GRAPHKIT_BINDINGS(arena_layout) {
    using Lifetime = std::tuple<std::int64_t, std::int64_t, std::vector<std::size_t>>;
    nb::class_<MemoryRequests>(m, "MemoryRequests",
                               "Lifetimes of memory blocks in an arena. Their sizes are given to lay_out.")
        .def(
            "__init__",
            [](MemoryRequests* self, const std::vector<Lifetime>& lifetimes) {
                std::vector<MemoryRequest> requests;
                for (const auto& [first, last, inplace] : lifetimes) {
                    requests.push_back({first, last, inplace});
                }
                new (self) MemoryRequests(std::move(requests));
            },
            "lifetimes"_a, "lifetimes: (first step, last step, requests to take over) for each.")
        .def(
            "lay_out",
            [](const MemoryRequests& self, const std::vector<std::int64_t>& bytes) {
                ArenaLayout layout = self.lay_out(bytes);
                return std::pair(std::move(layout.offsets), layout.arena_bytes);
            },
            "bytes"_a, "Return the offset of each request for these sizes, and the size of the arena, in bytes.");
}

}  // namespace graphkit
