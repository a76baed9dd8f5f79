#include "runtime/schedule.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>

#include "runtime/bindings.h"

namespace graphkit {
namespace {

template <typename T>
using MinHeap = std::priority_queue<T, std::vector<T>, std::greater<>>;

std::vector<int> without_duplicates(std::vector<int> numbers) {
    std::sort(numbers.begin(), numbers.end());
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
    return numbers;
}

}  // namespace

Scheduler::Scheduler(std::vector<Task> tasks, std::vector<std::int64_t> sizes)
    : tasks_(std::move(tasks)),
      sizes_(std::move(sizes)),
      written_(sizes_.size()),
      waiting_(tasks_.size()),
      followers_(tasks_.size()) {
    const auto check = [this](int buffer) {
        if (buffer < 0 || static_cast<std::size_t>(buffer) >= sizes_.size()) {
            throw NativeError("a task uses buffer " + std::to_string(buffer) + ", which has no size");
        }
    };
    for (const Task& task : tasks_) {
        for (const std::vector<int>* buffers : {&task.reads, &task.writes, &task.after}) {
            std::for_each(buffers->begin(), buffers->end(), check);
        }
        for (const auto& [source, target] : task.inplace) {
            check(source);
            check(target);
        }
        reads_.push_back(without_duplicates(task.reads));
        for (const int buffer : task.writes) {
            written_[buffer] = 1;
        }
    }
    find_dependencies();
}

void Scheduler::find_dependencies() {
    std::vector<int> writer(sizes_.size(), -1);
    for (std::size_t index = 0; index < tasks_.size(); ++index) {
        for (const int buffer : tasks_[index].writes) {
            writer[buffer] = static_cast<int>(index);
        }
    }
    for (std::size_t index = 0; index < tasks_.size(); ++index) {
        std::vector<int> before;
        for (const std::vector<int>* buffers : {&tasks_[index].reads, &tasks_[index].after}) {
            for (const int buffer : *buffers) {
                if (writer[buffer] >= 0) {
                    before.push_back(writer[buffer]);
                }
            }
        }
        before = without_duplicates(std::move(before));
        waiting_[index] = static_cast<int>(before.size());
        for (const int earlier : before) {
            followers_[earlier].push_back(static_cast<int>(index));
        }
    }
}

Schedule Scheduler::best() const {
    Schedule found;
    found.order = plain_order();
    found.peak_bytes = found.plain_peak_bytes = peak_bytes(found.order);
    const std::int64_t lower_bound = peak_lower_bound();
    if (found.peak_bytes <= lower_bound) {
        return found;
    }
    std::vector<std::vector<std::int64_t>> counted{sizes_};
    if (std::vector<std::int64_t> without_updates = sizes_without_updates(); without_updates != sizes_) {
        counted.insert(counted.begin(), std::move(without_updates));
    }
    for (const bool eager : {false, true}) {
        for (const std::vector<std::int64_t>& allocated : counted) {
            std::vector<int> order = list_schedule(eager, allocated);
            if (const std::int64_t peak = peak_bytes(order); peak < found.peak_bytes) {
                found.peak_bytes = peak;
                found.order = std::move(order);
            }
            if (found.peak_bytes == lower_bound) {
                return found;
            }
        }
    }
    return found;
}

std::vector<int> Scheduler::plain_order() const {
    std::vector<int> waiting = waiting_;
    MinHeap<int> ready;
    for (std::size_t index = 0; index < tasks_.size(); ++index) {
        if (waiting[index] == 0) {
            ready.push(static_cast<int>(index));
        }
    }
    std::vector<int> order;
    order.reserve(tasks_.size());
    while (!ready.empty()) {
        const int index = ready.top();
        ready.pop();
        order.push_back(index);
        for (const int follower : followers_[index]) {
            if (--waiting[follower] == 0) {
                ready.push(follower);
            }
        }
    }
    if (order.size() != tasks_.size()) {
        throw NativeError("the tasks have a cyclic dependency");
    }
    return order;
}

std::vector<int> Scheduler::list_schedule(bool eager, const std::vector<std::int64_t>& allocated) const {
    std::vector<int> waiting = waiting_;
    // For each buffer: the number of tasks that have not read it yet, and the sum of their indices.
    std::vector<int> unread(sizes_.size());
    std::vector<std::int64_t> readers(sizes_.size());
    for (std::size_t index = 0; index < tasks_.size(); ++index) {
        for (const int buffer : reads_[index]) {
            ++unread[buffer];
            readers[buffer] += static_cast<std::int64_t>(index);
        }
    }
    const auto rank = [&](int index) {
        std::int64_t growth = 0;
        for (const int buffer : tasks_[index].writes) {
            growth += allocated[buffer];
        }
        for (const int buffer : reads_[index]) {
            if (written_[buffer] != 0 && unread[buffer] == 1) {
                growth -= sizes_[buffer];
            }
        }
        return eager ? static_cast<std::int64_t>(growth > 0) : growth;
    };
    // The rank of a waiting task can only fall. Whenever it falls, the task is pushed again. So the first entry of a
    // task to be popped has its current rank, and later ones are skipped.
    MinHeap<std::pair<std::int64_t, int>> heap;
    const auto push = [&](int index) { heap.emplace(rank(index), index); };
    for (std::size_t index = 0; index < tasks_.size(); ++index) {
        if (waiting[index] == 0) {
            push(static_cast<int>(index));
        }
    }
    std::vector<char> done(tasks_.size());
    std::vector<int> order;
    order.reserve(tasks_.size());
    while (!heap.empty()) {
        const int index = heap.top().second;
        heap.pop();
        if (done[index] != 0) {
            continue;
        }
        done[index] = 1;
        order.push_back(index);
        for (const int buffer : reads_[index]) {
            readers[buffer] -= index;
            if (--unread[buffer] == 1 && sizes_[buffer] != 0) {
                if (const int only = static_cast<int>(readers[buffer]); waiting[only] == 0) {
                    push(only);
                }
            }
        }
        for (const int follower : followers_[index]) {
            if (--waiting[follower] == 0) {
                push(follower);
            }
        }
    }
    return order;
}

std::int64_t Scheduler::peak_bytes(const std::vector<int>& order) const {
    std::vector<int> last(sizes_.size(), -1);
    for (const int index : order) {
        for (const std::vector<int>* buffers : {&tasks_[index].writes, &tasks_[index].reads}) {
            for (const int buffer : *buffers) {
                last[buffer] = index;
            }
        }
    }
    std::vector<std::int64_t> held(sizes_.size(), -1);  // bytes of the memory of each live buffer; -1: not written yet
    std::vector<int> taken(sizes_.size(), -1);  // the last task that overwrote the buffer
    std::int64_t live = 0;
    std::int64_t peak = 0;
    for (const int index : order) {
        const Task& task = tasks_[index];
        for (const auto& [source, target] : task.inplace) {
            const bool dying =
                last[source] == index && std::binary_search(reads_[index].begin(), reads_[index].end(), source);
            const bool fits = dying && taken[source] != index && held[target] < 0;
            if (fits && sizes_[target] > 0 && sizes_[target] <= held[source]) {
                held[target] = held[source];
                taken[source] = index;
            }
        }
        for (const int buffer : task.writes) {
            if (held[buffer] < 0) {
                held[buffer] = sizes_[buffer];
                live += sizes_[buffer];
            }
        }
        peak = std::max(peak, live + task.scratch);
        for (const int buffer : reads_[index]) {
            if (last[buffer] == index && taken[buffer] != index) {
                live -= std::max<std::int64_t>(held[buffer], 0);
            }
        }
        for (const int buffer : task.writes) {
            if (last[buffer] == index) {
                live -= held[buffer];
            }
        }
    }
    return peak;
}

std::int64_t Scheduler::peak_lower_bound() const {
    std::int64_t largest = 0;
    for (std::size_t index = 0; index < tasks_.size(); ++index) {
        const std::vector<int>& reads = reads_[index];
        std::vector<int> targets;
        for (const auto& [source, target] : tasks_[index].inplace) {
            if (std::binary_search(reads.begin(), reads.end(), source)) {
                targets.push_back(target);
            }
        }
        std::int64_t bytes = tasks_[index].scratch;
        for (const int buffer : reads) {
            bytes += sizes_[buffer];
        }
        for (const int buffer : tasks_[index].writes) {
            if (std::find(targets.begin(), targets.end(), buffer) == targets.end()) {
                bytes += sizes_[buffer];
            }
        }
        largest = std::max(largest, bytes);
    }
    return largest;
}

// Returns the sizes, with 0 for buffers that only updates read: tasks that write nothing to the arena.
std::vector<std::int64_t> Scheduler::sizes_without_updates() const {
    std::vector<std::int64_t> kept(sizes_.size());
    for (std::size_t index = 0; index < tasks_.size(); ++index) {
        const std::vector<int>& writes = tasks_[index].writes;
        if (std::any_of(writes.begin(), writes.end(), [this](int buffer) { return sizes_[buffer] != 0; })) {
            for (const int buffer : reads_[index]) {
                kept[buffer] = sizes_[buffer];
            }
        }
    }
    return kept;
}

using TaskTuple =
    std::tuple<std::vector<int>, std::vector<int>, std::vector<int>, std::vector<std::pair<int, int>>, std::int64_t>;

GRAPHKIT_BINDINGS(schedule) {
    m.def(
        "schedule",
        [](std::vector<TaskTuple> given, std::vector<std::int64_t> sizes) {
            std::vector<Task> tasks;
            tasks.reserve(given.size());
            for (auto& [reads, writes, after, inplace, scratch] : given) {
                tasks.push_back({std::move(reads), std::move(writes), std::move(after), std::move(inplace), scratch});
            }
            Schedule found = Scheduler(std::move(tasks), std::move(sizes)).best();
            return std::tuple(std::move(found.order), found.peak_bytes, found.plain_peak_bytes);
        },
        "tasks"_a, "sizes"_a,
        "Return the order of the tasks with the lowest peak of live bytes, its peak, and that of the given order.");
}

}  // namespace graphkit
