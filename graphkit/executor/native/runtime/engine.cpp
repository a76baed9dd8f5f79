#include "runtime/engine.h"

#include <algorithm>
#include <atomic>
#include <thread>

#ifdef __unix__
#include <pthread.h>
#endif

#include "runtime/engine_state.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

using Clock = std::chrono::steady_clock;

std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

// The number of forks between the process that loaded this module and this one. Threads and locks of engines that were
// made before the latest fork do not exist in this process.
std::atomic<int> forks{0};

int fork_count() {
#ifdef __unix__
    static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
    static_cast<void>(registered);
#endif
    return forks.load(std::memory_order_relaxed);
}

std::atomic<std::uint64_t> engines{0};  // number of engines made so far; the next engine's number

// The number of the engine whose operations this thread runs; kNever for other threads.
thread_local std::uint64_t current = kNever;

}  // namespace

Engine::State::State(int workers) : id_(engines.fetch_add(1)), workers_(workers), forks_(fork_count()) {}

bool Engine::State::elsewhere() const {
    return forks_ != fork_count();
}

// Starts the workers. The caller holds the mutex.
void Engine::State::start() {
    for (; started_ < workers_; ++started_, ++running_) {
        start_thread([self = shared_from_this(), worker = started_] { self->work(worker); }).detach();
    }
}

void Engine::State::work(int worker) {
    current = id_;
#ifdef __linux__
    pthread_setname_np(pthread_self(), "graphkit-worker");
#endif
    Lock lock(mutex_);
    for (;;) {
        ++idle_;
        rest(lock);
        --idle_;
        if (ready_.empty()) {
            break;
        }
        std::pop_heap(ready_.begin(), ready_.end(), later);
        EngineOperation& operation = *ready_.back();
        ready_.pop_back();
        start_.release();
        // This worker takes one of the operations that became ready.
        const std::size_t made_ready = run(lock, operation, worker);
        wake(made_ready > 0 ? made_ready - 1 : 0);
    }
    --running_;
    done_.notify_all();
}

// Waits until there is an operation for a worker, or the engine stops. One of the idle workers is the watcher.
void Engine::State::rest(Lock& lock) {
    while (!stopping_ && (ready_.empty() || start_.held())) {
        if (!start_.wants_watcher()) {
            work_.wait(lock);
            continue;
        }
        start_.set_watched(true);
        const std::cv_status status = work_.wait_for(lock, start_.next_look());
        start_.set_watched(false);
        if (status == std::cv_status::timeout) {
            start_.look();
        }
    }
}

// Runs an operation, unless a failure keeps it from running. Returns how many operations became ready to run.
std::size_t Engine::State::run(Lock& lock, EngineOperation& operation, int worker) {
    std::shared_ptr<const Failure> failure = obstacle(operation);
    if (failure == nullptr) {
        const bool traced = tracing_;
        ++busy_;
        lock.unlock();
        const std::int64_t start = traced ? now() : 0;
        try {
            operation.work();
        } catch (...) {
            failure =
                std::make_shared<const Failure>(Failure{operation.sequence, operation.name, std::current_exception()});
        }
        const std::int64_t end = traced ? now() : 0;
        operation.work = nullptr;
        lock.lock();
        --busy_;
        if (traced) {
            events_.push_back({operation.name, worker, start, end});
        }
    }
    return finish(operation, std::move(failure));
}

// Runs a ready operation that needed(operation) accepts on this thread, which waits. Returns whether it ran one. Then
// `owed` says whether this thread should run the only ready operation next, so that no worker was woken for it.
template <typename Needed>
bool Engine::State::help(Lock& lock, Needed&& needed, bool& owed) {
    // The search is short: if many operations are ready, the workers are about to take them.
    constexpr std::size_t kMostReady = 16;
    if (busy_ >= workers_ || ready_.size() > kMostReady) {
        return false;
    }
    const auto accepts = [&](const EngineOperation* operation) {
        return operation->runner == Runner::any && needed(*operation);
    };
    const auto found = std::find_if(ready_.begin(), ready_.end(), accepts);
    if (found == ready_.end()) {
        return false;
    }
    EngineOperation& operation = **found;
    ready_.erase(found);
    std::make_heap(ready_.begin(), ready_.end(), later);
    start_.awaited();
    const std::uint64_t previous = std::exchange(current, id_);
    ++running_;
    const std::size_t made_ready = run(lock, operation, -1);
    --running_;
    current = previous;
    owed = made_ready == 1 && ready_.size() == 1 && accepts(ready_.front());
    wake(owed ? 0 : made_ready);
    if (stopping_) {
        done_.notify_all();
    }
    return true;
}

void Engine::State::check_caller() const {
    if (elsewhere()) {
        throw NativeError("this engine belongs to the parent of this process, as do its workers; make another one");
    }
}

void Engine::State::push(EngineOperation&& made, const Variables& reads, const Variables& writes) {
    check_caller();
    const std::lock_guard lock(mutex_);
    if (stopping_) {
        throw NativeError("the engine is closed; operation '" + made.name + "' was not accepted");
    }
    start();
    const bool is_only = operations_.empty(), for_any = made.runner == Runner::any;
    const std::size_t made_ready = submit(std::move(made), reads, writes);
    if (for_any && (is_only ? start_.hold() : made_ready == 0 && start_.hold_longer())) {
        return;
    }
    wake(made_ready + (start_.release() ? 1 : 0));
}

// Queues an operation at its variables. Returns how many operations became ready to run.
std::size_t Engine::State::submit(EngineOperation&& made, const Variables& reads, const Variables& writes) {
    for (const Variables* list : {&reads, &writes}) {
        for (const VariablePtr& variable : *list) {
            if (variable->engine != id_) {
                throw NativeError("operation '" + made.name + "' uses a variable of another engine");
            }
        }
    }
    // Written variables come first: if a variable is in both lists, it counts as written.
    made.sequence = next_++;
    made.variables.reserve(reads.size() + writes.size());
    made.claims.reserve(reads.size() + writes.size());
    for (const Variables* list : {&writes, &reads}) {
        for (const VariablePtr& variable : *list) {
            if (variable->named_by != made.sequence) {
                variable->named_by = made.sequence;
                made.variables.push_back(variable);
                made.claims.push_back({nullptr, list == &writes, nullptr});
            }
        }
    }
    EngineOperation& operation = operations_.emplace_back(std::move(made));
    operation.self = std::prev(operations_.end());
    for (std::size_t i = 0; i < operation.claims.size(); ++i) {
        operation.claims[i].operation = &operation;
        operation.missing += operation.variables[i]->enter(operation.claims[i]) ? 0 : 1;
    }
    std::vector<EngineOperation*> ready;
    if (operation.missing == 0) {
        ready.push_back(&operation);
    }
    return settle(ready);
}

// Returns the failure that keeps a ready operation from running; null if it may run.
std::shared_ptr<const Failure> Engine::State::obstacle(const EngineOperation& operation) const {
    std::shared_ptr<const Failure> first;
    for (const VariablePtr& variable : operation.variables) {
        const std::shared_ptr<const Failure>& failure = variable->failure;
        if (failed(*variable, operation.sequence) && (first == nullptr || failure->sequence < first->sequence)) {
            first = failure;
        }
    }
    if (first == nullptr && operation.sequence < cancelled_before_) {
        const Cancelled error("operation '" + operation.name + "' was cancelled");
        first = std::make_shared<const Failure>(
            Failure{operation.sequence, operation.name, std::make_exception_ptr(error)});
    }
    return first;
}

// Ends an operation that ran, or that `failure` kept from running. Returns how many operations became ready to run.
std::size_t Engine::State::finish(EngineOperation& operation, std::shared_ptr<const Failure> failure) {
    if (failure != nullptr && failure->sequence == operation.sequence) {
        unreported_.emplace(failure->sequence, failure);
    }
    std::vector<EngineOperation*> ready;
    for (std::size_t i = 0; i < operation.claims.size(); ++i) {
        Variable& variable = *operation.variables[i];
        if (operation.claims[i].write) {
            variable.failure = failure;
            variable.failed_by = operation.sequence;
            variable.usable_from = kNever;
        }
        variable.leave(operation.claims[i].write, ready);
    }
    erase(operation);
    return settle(ready);
}

void Engine::State::erase(const EngineOperation& operation) {
    operations_.erase(operation.self);
    if (operations_.empty() || operations_.front().sequence >= awaited_) {
        awaited_ = kNever;
        done_.notify_all();
    }
}

// Queues operations that wait for no variable any more for the workers. Marks end here immediately. Returns how many
// operations can run.
std::size_t Engine::State::settle(std::vector<EngineOperation*>& ready) {
    std::size_t count = 0;
    while (!ready.empty()) {
        EngineOperation& operation = *ready.back();
        ready.pop_back();
        if (operation.mark == nullptr) {
            ready_.push_back(&operation);
            std::push_heap(ready_.begin(), ready_.end(), later);
            ++count;
            continue;
        }
        Variable& variable = *operation.variables.front();
        if (!operation.mark->abandoned && failed(variable, operation.sequence)) {
            operation.mark->failure = variable.failure;
            variable.usable_from = operation.sequence;
            unreported_.erase(variable.failure->sequence);
        }
        operation.mark->reached = true;
        done_.notify_all();
        variable.leave(operation.claims.front().write, ready);
        erase(operation);
    }
    return count;
}

void Engine::State::wake(std::size_t count) {
    for (std::size_t i = std::min(count, static_cast<std::size_t>(idle_)); i > 0; --i) {
        work_.notify_one();
    }
}

// Waits until done(). Meanwhile, this thread runs operations that needed(operation) accepts.
template <typename Done, typename Needed>
void Engine::State::wait_until(Lock& lock, const Poll& poll, Done&& done, Needed&& needed) {
    auto next = Clock::now() + Engine::kPollInterval;
    bool owed = false;
    const auto wake_owed = [&] { wake(std::exchange(owed, false) ? 1 : 0); };
    while (!done()) {
        const bool helped = help(lock, needed, owed);
        if (!helped) {
            wake_owed();
            wake(start_.release() ? 1 : 0);
        }
        if (helped ? Clock::now() >= next : done_.wait_until(lock, next) == std::cv_status::timeout) {
            wake_owed();
            lock.unlock();
            poll();
            lock.lock();
            next = Clock::now() + Engine::kPollInterval;
        }
    }
    wake_owed();
}

void Engine::State::check_waiter() const {
    check_caller();
    if (current == id_) {
        throw NativeError("an operation cannot wait for the engine that runs it; name what it needs in `reads`");
    }
}

std::shared_ptr<const Failure> Engine::State::wait(const VariablePtr& variable, bool exclusive, const Poll& poll) {
    check_waiter();
    EngineOperation place;
    place.name = "wait";
    place.mark = std::make_shared<Mark>();
    const std::shared_ptr<Mark> mark = place.mark;
    const Variables list{variable};
    const auto is_needed = [&](const EngineOperation& operation) {
        const Variables& used = operation.variables;
        return start_.held() || std::find(used.begin(), used.end(), variable) != used.end();
    };
    Lock lock(mutex_);
    submit(std::move(place), exclusive ? Variables{} : list, exclusive ? list : Variables{});
    try {
        wait_until(lock, poll, [&] { return mark->reached; }, is_needed);
    } catch (...) {
        lock.lock();
        mark->abandoned = true;
        if (mark->failure != nullptr) {  // this waiter will not return it
            unreported_.emplace(mark->failure->sequence, mark->failure);
        }
        throw;
    }
    return mark->failure;
}

bool Engine::State::is_readable(const Variable& variable) const {
    if (elsewhere() || current == id_) {
        return false;
    }
    const std::lock_guard lock(mutex_);
    return variable.failure == nullptr && variable.is_readable();
}

std::shared_ptr<const Failure> Engine::State::wait_all(const Poll& poll) {
    check_waiter();
    Lock lock(mutex_);
    const std::uint64_t limit = next_;
    const auto is_done = [&] {
        if (operations_.empty() || operations_.front().sequence >= limit) {
            return true;
        }
        awaited_ = std::min(awaited_, limit);
        return false;
    };
    wait_until(lock, poll, is_done, [&](const EngineOperation& operation) { return operation.sequence < limit; });
    std::shared_ptr<const Failure> first;
    if (!unreported_.empty() && unreported_.begin()->first < limit) {
        first = unreported_.begin()->second;
        unreported_.erase(unreported_.begin(), unreported_.lower_bound(limit));
    }
    forgiven_before_ = std::max(forgiven_before_, limit);
    return first;
}

void Engine::State::cancel() {
    check_caller();
    const std::lock_guard lock(mutex_);
    cancelled_before_ = next_;
}

void Engine::State::stop() {
    const std::lock_guard lock(mutex_);
    cancelled_before_ = next_;
    stopping_ = true;
    work_.notify_all();
}

bool Engine::State::join(std::chrono::milliseconds patience, const Poll& poll) {
    const auto deadline = Clock::now() + patience;
    Lock lock(mutex_);
    const int own = current == id_ ? 1 : 0;  // an operation that closes its own engine must not wait for its own worker
    const auto is_done = [&] { return running_ <= own || Clock::now() >= deadline; };
    wait_until(lock, poll, is_done, [](const EngineOperation&) { return false; });
    return running_ <= own;
}

Engine::Engine(int workers) {
    if (workers < 1) {
        throw NativeError("an engine needs at least one worker");
    }
    state_ = std::make_shared<State>(workers);
}

Engine::~Engine() {
    if (state_->elsewhere()) {
        // The workers' shared pointers keep the state alive. Threads that do not exist in this process may hold its
        // locks.
        return;
    }
    state_->stop();
}

VariablePtr Engine::variable() {
    return std::make_shared<Variable>(state_->id());
}

void Engine::push(std::string name, Work work, const Variables& reads, const Variables& writes, int priority,
                  Runner runner) {
    EngineOperation made;
    made.name = std::move(name);
    made.work = std::move(work);
    made.priority = priority;
    made.runner = runner;
    state_->push(std::move(made), reads, writes);
}

std::shared_ptr<const Failure> Engine::wait(const VariablePtr& variable, bool exclusive, const Poll& poll) {
    return state_->wait(variable, exclusive, poll);
}

bool Engine::is_readable(const VariablePtr& variable) const {
    return state_->is_readable(*variable);
}

std::shared_ptr<const Failure> Engine::wait_all(const Poll& poll) {
    return state_->wait_all(poll);
}

void Engine::cancel() {
    state_->cancel();
}

bool Engine::close(std::chrono::milliseconds patience, const Poll& poll) {
    if (state_->elsewhere()) {
        return true;
    }
    state_->stop();
    return state_->join(patience, poll);
}

int Engine::workers() const {
    return state_->workers();
}

std::size_t Engine::pending() const {
    return state_->pending();
}

void Engine::trace(bool on) {
    state_->trace(on);
}

std::vector<Engine::Event> Engine::take_events() {
    return state_->take_events();
}

}  // namespace graphkit
