// The state of a dependency engine: its operations and threads.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/engine.h"
#include "runtime/held_start.h"
#include "runtime/variable.h"

namespace graphkit {

class Engine::State : public std::enable_shared_from_this<Engine::State> {
  public:
    explicit State(int workers);

    void start();
    void push(EngineOperation&& made, const Variables& reads, const Variables& writes);
    std::shared_ptr<const Failure> wait(const VariablePtr& variable, bool exclusive, const Poll& poll);
    bool is_readable(const Variable& variable) const;
    std::shared_ptr<const Failure> wait_all(const Poll& poll);
    void cancel();
    void stop();
    bool join(std::chrono::milliseconds patience, const Poll& poll);
    bool elsewhere() const;

    std::uint64_t id() const { return id_; }
    int workers() const { return workers_; }
    std::size_t pending() const {
        check_caller();
        const std::lock_guard lock(mutex_);
        return operations_.size();
    }
    void trace(bool on) {
        check_caller();
        const std::lock_guard lock(mutex_);
        tracing_ = on;
    }
    std::vector<Event> take_events() {
        check_caller();
        const std::lock_guard lock(mutex_);
        return std::exchange(events_, {});
    }

  private:
    using Lock = std::unique_lock<std::mutex>;

    void work(int worker);
    void rest(Lock& lock);
    std::size_t run(Lock& lock, EngineOperation& operation, int worker);
    template <typename Needed>
    bool help(Lock& lock, Needed&& needed, bool& owed);
    std::size_t submit(EngineOperation&& made, const Variables& reads, const Variables& writes);
    std::size_t finish(EngineOperation& operation, std::shared_ptr<const Failure> failure);
    void erase(const EngineOperation& operation);
    std::size_t settle(std::vector<EngineOperation*>& ready);
    std::shared_ptr<const Failure> obstacle(const EngineOperation& operation) const;
    void wake(std::size_t count);
    void check_caller() const;
    void check_waiter() const;
    template <typename Done, typename Needed>
    void wait_until(Lock& lock, const Poll& poll, Done&& done, Needed&& needed);

    // Whether the variable has a failure that keeps the operation of this sequence number from running.
    bool failed(const Variable& variable, std::uint64_t sequence) const {
        const bool forgiven = variable.failed_by < forgiven_before_ && sequence >= forgiven_before_;
        return variable.failure != nullptr && sequence < variable.usable_from && !forgiven;
    }

    static bool later(const EngineOperation* a, const EngineOperation* b) {
        return a->priority != b->priority ? a->priority < b->priority : a->sequence > b->sequence;
    }

    const std::uint64_t id_;
    const int workers_;
    const int forks_;
    mutable std::mutex mutex_;
    std::condition_variable work_;  // for workers: an operation is ready, or the engine stops
    std::condition_variable done_;  // for threads that wait

    std::list<EngineOperation> operations_;  // not done, oldest first
    std::vector<EngineOperation*> ready_;    // heap: the first element runs next
    std::uint64_t next_ = 0;
    std::uint64_t cancelled_before_ = 0;
    std::uint64_t forgiven_before_ = 0;
    std::uint64_t awaited_ = kNever;  // a thread waits until all operations with lower numbers are done
    std::map<std::uint64_t, std::shared_ptr<const Failure>> unreported_;

    HeldStart start_;
    int idle_ = 0;
    int busy_ = 0;  // operations that run
    // worker threads started: none before the first operation, so that an unused engine costs nothing
    int started_ = 0;
    int running_ = 0;  // worker threads that have not ended, and other threads that run operations
    bool stopping_ = false;
    bool tracing_ = false;
    std::vector<Event> events_;
};

}  // namespace graphkit
