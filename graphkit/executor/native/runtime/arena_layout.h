// Computes offsets in an arena for memory blocks with known lifetimes. Fast enough to run before a short run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace graphkit {

// Memory that is in use from step `first`, which writes it, to step `last`, the last one that reads it, both included.
struct MemoryRequest {
    std::int64_t first;
    std::int64_t last;
    std::vector<std::size_t> inplace;  // requests whose memory it may reuse: their `last` is this one's `first`
};

struct ArenaLayout {
    std::vector<std::int64_t> offsets;  // bytes; 0 if the request has no bytes
    std::int64_t arena_bytes = 0;
};

// The blocks of an arena. Their sizes are given for each layout.
class MemoryRequests {
  public:
    explicit MemoryRequests(std::vector<MemoryRequest> requests);

    // Places blocks of these sizes in two sweeps over time, forwards and backwards, with a best-fit free list, and
    // returns the smaller arena. Takes O(n log n + n r) for r ranges that are free at one time. Throws NativeError for
    // another number of sizes.
    ArenaLayout lay_out(const std::vector<std::int64_t>& bytes) const;

  private:
    struct Block;
    std::vector<Block> chain(const std::vector<std::int64_t>& bytes, std::vector<std::size_t>& owner) const;

    std::vector<MemoryRequest> requests_;
    std::vector<std::size_t> order_;  // by first step
};

}  // namespace graphkit
