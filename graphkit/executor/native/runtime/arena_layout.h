// Offsets in an arena for blocks whose lives are known, found in the time that a small run can spare.
#pragma once

#include <cstdint>
#include <vector>

namespace graphkit {

// Bytes that live from the step that writes them to the one that reads them last, both included.
struct MemoryRequest {
    std::int64_t bytes;
    std::int64_t first;
    std::int64_t last;
    std::vector<std::size_t> inplace;  // requests whose memory it may take over: those that die where it is written
};

struct ArenaLayout {
    std::vector<std::int64_t> offsets;  // 0 of a request without bytes
    std::int64_t arena_bytes = 0;
};

// Two sweeps over time with a best-fit free list; the smaller arena. n log n.
ArenaLayout lay_out(const std::vector<MemoryRequest>& requests);

}  // namespace graphkit
