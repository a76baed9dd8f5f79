// Chooses the order of the steps of a program. It computes the same as graphkit/executor/memory/schedule.py.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace graphkit {

// A step and the buffers that it uses; see Task in schedule.py.
struct Task {
    std::vector<int> reads;
    std::vector<int> writes;
    std::vector<int> after;
    std::vector<std::pair<int, int>> inplace;
    std::int64_t scratch = 0;
};

struct Schedule {
    std::vector<int> order;
    std::int64_t peak_bytes = 0;
    std::int64_t plain_peak_bytes = 0;
};

// Finds orders of tasks. All methods take O(n log n) time.
class Scheduler {
  public:
    // `sizes` has one entry per buffer. Throws NativeError for a buffer that it lacks.
    Scheduler(std::vector<Task> tasks, std::vector<std::int64_t> sizes);

    // Returns the order with the lowest peak: the given one, or one by list scheduling. Throws NativeError for cyclic
    // dependencies.
    Schedule best() const;

  private:
    std::vector<int> plain_order() const;
    std::vector<int> list_schedule(bool eager, const std::vector<std::int64_t>& allocated) const;
    std::int64_t peak_bytes(const std::vector<int>& order) const;
    std::int64_t peak_lower_bound() const;
    std::vector<std::int64_t> sizes_without_updates() const;
    void find_dependencies();

    std::vector<Task> tasks_;
    std::vector<std::int64_t> sizes_;
    std::vector<std::vector<int>> reads_;  // of each task, without duplicates
    std::vector<char> written_;            // of each buffer: whether a task writes it
    std::vector<int> waiting_;             // of each task: the number of tasks that it depends on directly
    std::vector<std::vector<int>> followers_;
};

}  // namespace graphkit
