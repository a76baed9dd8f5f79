#include "runtime/array_queue.h"

#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>

namespace graphkit {
namespace {

std::atomic<std::uint64_t> queues{0};      // number of queues made so far
std::atomic<std::uint64_t> operations{0};  // number of operations pushed so far

}  // namespace

std::shared_ptr<const Failure> ArrayState::failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
}

void ArrayState::set_failure(std::shared_ptr<const Failure> failure) {
    const std::lock_guard lock(mutex_);
    failure_.swap(failure);
}

void UnreportedFailures::add(std::shared_ptr<const Failure> failure) {
    const std::lock_guard lock(mutex_);
    failures_.emplace(failure->sequence, std::move(failure));
}

void UnreportedFailures::remove(const Failure& failure) {
    const std::lock_guard lock(mutex_);
    failures_.erase(failure.sequence);
}

std::shared_ptr<const Failure> UnreportedFailures::take_oldest() {
    const std::lock_guard lock(mutex_);
    if (failures_.empty()) {
        return nullptr;
    }
    std::shared_ptr<const Failure> oldest = failures_.begin()->second;
    failures_.clear();
    return oldest;
}

TaskArena::~TaskArena() {
    std::free(memory_);
}

std::byte* TaskArena::at_least(std::size_t bytes) {
    constexpr std::size_t kPageBytes = 4096;
    if (bytes > bytes_) {
        std::free(memory_);
        bytes_ = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
        memory_ = static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes_));
        if (memory_ == nullptr) {
            bytes_ = 0;
            throw std::bad_alloc();
        }
    }
    return memory_;
}

std::unique_ptr<TaskArena> TaskArenas::take() {
    {
        const std::lock_guard lock(mutex_);
        if (!idle_.empty()) {
            std::unique_ptr<TaskArena> found = std::move(idle_.back());
            idle_.pop_back();
            return found;
        }
    }
    return std::make_unique<TaskArena>();
}

void TaskArenas::put_back(std::unique_ptr<TaskArena> arena) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(arena));
}

void ArrayOperation::operator()() const {
    std::shared_ptr<const Failure> failure;
    for (const ArrayStatePtr& state : reads) {
        std::shared_ptr<const Failure> found = state->failure();
        if (found != nullptr && (failure == nullptr || found->sequence < failure->sequence)) {
            failure = std::move(found);
        }
    }
    if (failure == nullptr) {
        try {
            work();
        } catch (...) {
            failure = std::make_shared<const Failure>(Failure{sequence, name, std::current_exception()});
            unreported->add(failure);
        }
    }
    for (const ArrayStatePtr& state : writes) {
        state->set_failure(failure);
    }
}

ArrayQueue::ArrayQueue(Engine& engine) : engine_(engine), number_(queues.fetch_add(1)) {}

ArrayStatePtr ArrayQueue::state() {
    return std::make_shared<ArrayState>(engine_.variable(), number_);
}

// After a fork there is another engine. All earlier operations are done, because the parent waits for them first.
const VariablePtr& ArrayQueue::variable_of(ArrayState& state) {
    if (state.queue_number != number_) {
        state.variable = engine_.variable();
        state.queue_number = number_;
    }
    return state.variable;
}

void ArrayQueue::push(std::string name, Work work, ArrayStates reads, ArrayStates writes, Runner runner,
                      std::size_t bytes) {
    ArrayOperation operation{operations.fetch_add(1), std::move(name),   std::move(work),
                             std::move(reads),        std::move(writes), unreported_};
    if (runner == Runner::any && gathering_ == std::this_thread::get_id()) {
        gathered_.push_back(std::move(operation));
        gathered_bytes_ += bytes;
        if (gathered_bytes_ > kMostBytes || gathered_.size() >= kMostGathered) {
            flush();
        }
        return;
    }
    flush();
    Variables read, written;
    add_variables(operation.reads, read);
    add_variables(operation.writes, written);
    std::string label = operation.name;
    engine_.push(std::move(label), std::move(operation), read, written, 0, runner);
}

bool ArrayQueue::begin_batch(std::string name) {
    if (gathering_ != std::thread::id()) {
        return false;
    }
    gathering_ = std::this_thread::get_id();
    batch_name_ = std::move(name);
    return true;
}

void ArrayQueue::end_batch() {
    gathering_ = std::thread::id();
    flush();
}

void ArrayQueue::flush() {
    if (gathered_.empty()) {
        return;
    }
    Variables read, written;
    for (const ArrayOperation& operation : gathered_) {
        add_variables(operation.reads, read);
        add_variables(operation.writes, written);
    }
    gathered_bytes_ = 0;
    auto run_all = [batch = std::exchange(gathered_, {})] {
        for (const ArrayOperation& operation : batch) {
            operation();
        }
    };
    engine_.push(batch_name_, std::move(run_all), read, written, 0, Runner::any);
}

void ArrayQueue::add_variables(const ArrayStates& states, Variables& found) {
    for (const ArrayStatePtr& state : states) {
        found.push_back(variable_of(*state));
    }
}

std::shared_ptr<const Failure> ArrayQueue::wait(const ArrayStatePtr& state, const VariablePtr& variable, bool exclusive,
                                                const Engine::Poll& poll) {
    std::shared_ptr<const Failure> failure = engine_.wait(variable, exclusive, poll);
    if (failure == nullptr) {
        failure = state->failure();
    }
    if (failure != nullptr) {
        unreported_->remove(*failure);
    }
    return failure;
}

bool ArrayQueue::is_readable(const ArrayState& state, const VariablePtr& variable) const {
    return engine_.is_readable(variable) && state.failure() == nullptr;
}

std::shared_ptr<const Failure> ArrayQueue::wait_all(const Engine::Poll& poll) {
    const std::shared_ptr<const Failure> failure = engine_.wait_all(poll);
    return failure == nullptr ? unreported_->take_oldest() : failure;
}

ArrayTask::ArrayTask(const Program& program, std::vector<External> fixed, std::size_t arena_bytes)
    : program_(program), fixed_(std::move(fixed)), arena_bytes_(arena_bytes) {}

std::unique_ptr<Instance> ArrayTask::take() {
    {
        const std::lock_guard lock(mutex_);
        if (!idle_.empty()) {
            std::unique_ptr<Instance> found = std::move(idle_.back());
            idle_.pop_back();
            return found;
        }
    }
    auto made = std::make_unique<Instance>(program_);
    for (const auto& [number, data] : fixed_) {
        made->set_external(number, data);
    }
    return made;
}

void ArrayTask::run(const std::vector<void*>& externals, TaskArenas& arenas) {
    std::unique_ptr<Instance> instance = take();
    // If the run fails, its arena is freed: a failure may be a lack of memory.
    std::unique_ptr<TaskArena> arena = arena_bytes_ > 0 ? arenas.take() : nullptr;
    instance->move(arena == nullptr ? nullptr : arena->at_least(arena_bytes_));
    for (std::size_t i = 0; i < externals.size(); ++i) {
        if (externals[i] != nullptr) {
            instance->set_external(static_cast<int>(i), externals[i]);
        }
    }
    // A task has no Python steps, and its runs are not interrupted.
    instance->run([](std::size_t) {}, [] {});
    if (arena != nullptr) {
        arenas.put_back(std::move(arena));
    }
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(instance));
}

}  // namespace graphkit
