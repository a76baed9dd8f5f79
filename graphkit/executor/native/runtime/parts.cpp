#include "runtime/parts.h"

#include <algorithm>
#include <atomic>

#include "runtime/threads.h"

namespace graphkit {

void run_parts(const std::vector<Instance*>& instances, const std::vector<PartArray>& arrays, std::int64_t parts,
               const std::function<void()>& poll) {
    // The least assumed cost of a part: high enough that every part is worth a thread.
    constexpr double kPartNanoseconds = 1e6;
    constexpr std::int64_t kMostTogether = 1 << 15;  // most chunks of one loop
    const auto threads = static_cast<int>(instances.size());
    const Team team(threads);
    for (Instance* instance : instances) {
        instance->begin_parts();
    }
    const double cost = std::max(kPartNanoseconds, static_cast<double>(instances[0]->part_nanoseconds()));
    std::atomic<bool> failed{false};
    const auto run_part = [&](std::int64_t part) {
        if (failed.load(std::memory_order_relaxed)) {
            return;
        }
        try {
            Instance& instance = *instances[static_cast<std::size_t>(thread_number())];
            for (const PartArray& array : arrays) {
                instance.set_external(array.external, array.data + part * array.step);
            }
            instance.run_timed_part({}, poll);
        } catch (...) {
            failed.store(true, std::memory_order_relaxed);
            throw;
        }
    };
    for (std::int64_t first = 0; first < parts; first += kMostTogether) {
        const std::int64_t some = std::min(parts - first, kMostTogether);
        for_each_chunk(threads, some, cost * static_cast<double>(some), [&](std::int64_t i) { run_part(first + i); });
    }
}

}  // namespace graphkit
