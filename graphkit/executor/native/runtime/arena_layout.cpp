#include "runtime/arena_layout.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "runtime/bindings.h"

namespace graphkit {
namespace {

// The memory of one request, or of a chain of requests that reuse each other's memory in place.
struct Block {
    std::int64_t bytes;
    std::int64_t first;
    std::int64_t last;
};

// Free ranges below `end`. Adjacent free ranges are merged.
class FreeRanges {
  public:
    // Returns the offset of `bytes` bytes in the smallest free range that holds them. If none does, the arena grows.
    std::int64_t take(std::int64_t bytes) {
        const auto found = by_size_.lower_bound({bytes, -1});
        if (found != by_size_.end()) {
            const auto [size, offset] = *found;
            remove(offset);
            if (size > bytes) {
                insert(offset + bytes, size - bytes);
            }
            return offset;
        }
        std::int64_t offset = end_;
        if (!at_.empty()) {
            const auto [begin, size] = *std::prev(at_.end());
            if (begin + size == end_) {
                offset = begin;
                remove(begin);
            }
        }
        end_ = offset + bytes;
        return offset;
    }

    void give(std::int64_t offset, std::int64_t bytes) {
        auto behind = at_.lower_bound(offset);
        if (behind != at_.end() && behind->first == offset + bytes) {
            bytes += behind->second;
            remove((behind++)->first);
        }
        if (behind != at_.begin()) {
            const auto [begin, size] = *std::prev(behind);
            if (begin + size == offset) {
                remove(begin);
                offset = begin;
                bytes += size;
            }
        }
        insert(offset, bytes);
    }

    std::int64_t end() const { return end_; }

  private:
    void insert(std::int64_t offset, std::int64_t bytes) {
        at_[offset] = bytes;
        by_size_.insert({bytes, offset});
    }

    void remove(std::int64_t offset) {
        const auto found = at_.find(offset);
        by_size_.erase({found->second, offset});
        at_.erase(found);
    }

    std::int64_t end_ = 0;
    std::map<std::int64_t, std::int64_t> at_;  // bytes by offset
    std::set<std::pair<std::int64_t, std::int64_t>> by_size_;
};

// Assigns a block to each request. At most one later request takes over the memory of a request.
std::vector<std::size_t> chain(const std::vector<MemoryRequest>& requests, std::vector<Block>& blocks) {
    std::vector<std::size_t> order(requests.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return requests[a].first < requests[b].first; });
    std::vector<std::size_t> owner(requests.size());
    std::vector<bool> taken(requests.size(), false);
    for (const std::size_t index : order) {
        const MemoryRequest& request = requests[index];
        owner[index] = blocks.size();
        for (const std::size_t candidate : request.inplace) {
            const MemoryRequest& source = requests[candidate];
            const bool fits = request.bytes > 0 && source.bytes > 0 && blocks[owner[candidate]].bytes >= request.bytes;
            if (fits && !taken[candidate] && source.last == request.first && request.first > source.first) {
                taken[candidate] = true;
                owner[index] = owner[candidate];
                blocks[owner[index]].last = request.last;
                break;
            }
        }
        if (owner[index] == blocks.size()) {
            blocks.push_back({static_cast<std::int64_t>(aligned(static_cast<std::size_t>(request.bytes))),
                              request.first, request.last});
        }
    }
    return owner;
}

// Writes the offset of each block, placing blocks in order of time or backwards. Returns the size of the arena in
// bytes.
std::int64_t sweep(const std::vector<Block>& blocks, bool backwards, std::vector<std::int64_t>& offsets) {
    const auto start = [&](std::size_t i) { return backwards ? -blocks[i].last : blocks[i].first; };
    const auto end = [&](std::size_t i) { return backwards ? -blocks[i].first : blocks[i].last; };
    std::vector<std::size_t> starts;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (blocks[i].bytes > 0) {
            starts.push_back(i);
        }
    }
    std::vector<std::size_t> ends = starts;
    std::stable_sort(starts.begin(), starts.end(), [&](std::size_t a, std::size_t b) {
        return std::pair(start(a), -blocks[a].bytes) < std::pair(start(b), -blocks[b].bytes);
    });
    std::stable_sort(ends.begin(), ends.end(), [&](std::size_t a, std::size_t b) { return end(a) < end(b); });
    FreeRanges free;
    auto done = ends.begin();
    for (const std::size_t index : starts) {
        for (; end(*done) < start(index); ++done) {
            free.give(offsets[*done], blocks[*done].bytes);
        }
        offsets[index] = free.take(blocks[index].bytes);
    }
    return free.end();
}

struct MemoryRequests {
    std::vector<MemoryRequest> requests;
};

}  // namespace

ArenaLayout lay_out(const std::vector<MemoryRequest>& requests) {
    std::vector<Block> blocks;
    const std::vector<std::size_t> owner = chain(requests, blocks);
    std::vector<std::int64_t> forwards(blocks.size(), 0);
    std::vector<std::int64_t> backwards(blocks.size(), 0);
    const std::int64_t one = sweep(blocks, false, forwards);
    const std::int64_t other = sweep(blocks, true, backwards);
    const std::vector<std::int64_t>& best = one <= other ? forwards : backwards;
    ArenaLayout layout;
    for (std::size_t i = 0; i < requests.size(); ++i) {
        layout.offsets.push_back(requests[i].bytes > 0 ? best[owner[i]] : 0);
    }
    layout.arena_bytes = std::min(one, other);
    return layout;
}

GRAPHKIT_BINDINGS(arena_layout) {
    using Lifetime = std::tuple<std::int64_t, std::int64_t, std::vector<std::size_t>>;
    nb::class_<MemoryRequests>(m, "MemoryRequests",
                               "Lifetimes of memory blocks in an arena. Their sizes are given to lay_out.")
        .def(
            "__init__",
            [](MemoryRequests* self, const std::vector<Lifetime>& lifetimes) {
                new (self) MemoryRequests;
                for (const auto& [first, last, inplace] : lifetimes) {
                    self->requests.push_back({0, first, last, inplace});
                }
            },
            "lifetimes"_a, "lifetimes: (first step, last step, requests to take over) for each.")
        .def(
            "lay_out",
            [](const MemoryRequests& self, const std::vector<std::int64_t>& bytes) {
                std::vector<MemoryRequest> requests = self.requests;
                if (bytes.size() != requests.size()) {
                    throw NativeError("memory requests: as many sizes as requests are needed");
                }
                for (std::size_t i = 0; i < requests.size(); ++i) {
                    requests[i].bytes = bytes[i];
                }
                ArenaLayout layout = lay_out(requests);
                return std::pair(std::move(layout.offsets), layout.arena_bytes);
            },
            "bytes"_a, "Return the offset of each request for these sizes, and the size of the arena, in bytes.");
}

}  // namespace graphkit
