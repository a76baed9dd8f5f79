// Arrays whose elements operations of a dependency engine compute. A failed operation marks the arrays that it writes;
// later operations that read them do not run, and mark theirs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine.h"
#include "runtime/program.h"

namespace graphkit {

// The state of an array's memory. Unlike a failure of a variable, that of an array stays until its elements are
// written anew, so that each wait returns it.
class ArrayState {
  public:
    ArrayState(VariablePtr made, std::uint64_t queue) : variable(std::move(made)), queue_number(queue) {}

    std::shared_ptr<const Failure> failure() const;
    void set_failure(std::shared_ptr<const Failure> failure);

    // The variable belongs to the engine of queue `queue_number`. After a fork, the queue replaces both.
    VariablePtr variable;
    std::uint64_t queue_number;

  private:
    mutable std::mutex mutex_;
    std::shared_ptr<const Failure> failure_;
};

using ArrayStatePtr = std::shared_ptr<ArrayState>;
using ArrayStates = std::vector<ArrayStatePtr>;

// Failures that no wait has returned yet.
class UnreportedFailures {
  public:
    void add(std::shared_ptr<const Failure> failure);
    void remove(const Failure& failure);
    // Removes all failures, and returns the oldest one; null if there is none.
    std::shared_ptr<const Failure> take_oldest();

  private:
    std::mutex mutex_;
    std::map<std::uint64_t, std::shared_ptr<const Failure>> failures_;
};

// Memory for the intermediate results of a task. It grows to the largest size that was needed.
class TaskArena {
  public:
    TaskArena() = default;
    TaskArena(const TaskArena&) = delete;
    TaskArena& operator=(const TaskArena&) = delete;
    ~TaskArena();

    std::byte* at_least(std::size_t bytes);

  private:
    std::byte* memory_ = nullptr;
    std::size_t bytes_ = 0;
};

// The arenas of the tasks of a queue: as many as tasks have run at the same time. A task takes the one that was used
// last, whose memory may be in the caches.
class TaskArenas {
  public:
    std::unique_ptr<TaskArena> take();
    void put_back(std::unique_ptr<TaskArena> arena);

  private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<TaskArena>> idle_;
};

// An operation on arrays, which never throws: its failure becomes that of the arrays.
struct ArrayOperation {
    void operator()() const;

    std::uint64_t sequence;  // number of operations pushed before
    std::string name;
    Work work;
    ArrayStates reads;
    ArrayStates writes;
    std::shared_ptr<UnreportedFailures> unreported;
};

// Pushes operations on arrays. The engine must outlive the queue.
//
// Between begin_batch and end_batch, the thread that called begin_batch gathers the operations that it pushes. They are
// one operation of the engine, which runs them one after the other, so that no more than one worker is woken. Each of
// them has its own failure. If any thread waits, or another thread pushes an operation, the gathered ones are pushed
// first. So the order of all operations is that of the calls of `push`.
class ArrayQueue {
  public:
    explicit ArrayQueue(Engine& engine);

    ArrayStatePtr state();
    // Runs `work`, which writes `bytes` bytes, after earlier operations on these arrays, unless one of `reads` has
    // failed.
    void push(std::string name, Work work, ArrayStates reads, ArrayStates writes, Runner runner, std::size_t bytes);
    // Begins a batch with the name `name`. Returns false if there is one already. Like `push`, `begin_batch`,
    // `end_batch` and `flush` are called by one thread at a time, which holds the GIL.
    bool begin_batch(std::string name);
    void end_batch();
    // Pushes the gathered operations.
    void flush();
    // Waits for earlier writes of the array and, if `exclusive`, reads. Returns the failure of the array. The variable
    // is that of the array.
    std::shared_ptr<const Failure> wait(const ArrayStatePtr& state, const VariablePtr& variable, bool exclusive,
                                        const Engine::Poll& poll);
    // Whether wait(state, variable, false) would return null at once.
    bool is_readable(const ArrayState& state, const VariablePtr& variable) const;
    // Waits for all operations. Returns the oldest failure that no wait has returned yet.
    std::shared_ptr<const Failure> wait_all(const Engine::Poll& poll);

    const std::shared_ptr<TaskArenas>& arenas() const { return arenas_; }

    // Returns the variable of an array. Like `push`, it is called by one thread at a time, which holds the GIL.
    const VariablePtr& variable_of(ArrayState& state);

  private:
    // Gathered operations are pushed when they write more than this, so that workers run a large batch in parallel.
    static constexpr std::size_t kMostBytes = std::size_t{8} << 20;
    static constexpr std::size_t kMostGathered = 256;

    void add_variables(const ArrayStates& states, Variables& found);

    Engine& engine_;
    std::uint64_t number_;
    // The thread that gathers operations; none outside of a batch.
    std::thread::id gathering_;
    std::string batch_name_;
    std::vector<ArrayOperation> gathered_;
    std::size_t gathered_bytes_ = 0;
    std::shared_ptr<UnreportedFailures> unreported_ = std::make_shared<UnreportedFailures>();
    // Operations share it, which may outlive the queue.
    std::shared_ptr<TaskArenas> arenas_ = std::make_shared<TaskArenas>();
};

// A program that threads run at the same time. Each takes an instance of its own, and uses its own arena.
class ArrayTask {
  public:
    struct External {
        int number;
        void* data;
    };

    // The program and the memory of `fixed` must outlive the task.
    ArrayTask(const Program& program, std::vector<External> fixed, std::size_t arena_bytes);

    // Runs the program on external memory 0, 1, ...; null for memory that it does not use.
    void run(const std::vector<void*>& externals, TaskArenas& arenas);

  private:
    std::unique_ptr<Instance> take();

    const Program& program_;
    const std::vector<External> fixed_;
    const std::size_t arena_bytes_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<Instance>> idle_;
};

}  // namespace graphkit
