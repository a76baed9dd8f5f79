// The dependency engine. It runs operations on worker threads, in an order that follows from the variables that they
// read and write.
//
// One mutex guards all state of an engine. No code touches Python objects while it holds the mutex: a thread that holds
// the GIL may wait for the mutex, never the other way round.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/kernel.h"

namespace graphkit {

// The operation was cancelled before it ran.
struct Cancelled : NativeError {
    using NativeError::NativeError;
};

// The first failure in a chain of dependent operations. A wait returns it.
struct Failure {
    std::uint64_t sequence;  // of the failed operation
    std::string operation;
    std::exception_ptr error;
};

// A resource that operations read and write: an array, a file, a connection. Operations that read it run in parallel,
// an operation that writes it runs alone; all run in the order in which they were pushed.
class Variable;

using VariablePtr = std::shared_ptr<Variable>;
using Variables = std::vector<VariablePtr>;
using Work = std::function<void()>;

// Which threads may run an operation. `any`: also a thread that waits for it. Such an operation must not run Python
// code or wait for anything, because its thread cannot handle signals meanwhile.
enum class Runner { worker, any };

class Engine {
  public:
    struct Event {
        std::string operation;
        int worker;  // -1: a thread that waited
        std::int64_t start;  // nanoseconds of the steady clock
        std::int64_t end;
    };
    // Called every kPollInterval by a thread that waits; may throw to end the wait.
    using Poll = std::function<void()>;
    static constexpr std::chrono::milliseconds kPollInterval{50};

    explicit Engine(int workers);
    // Cancels operations that have not started. Never waits: each worker ends after its current operation.
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    VariablePtr variable();

    // Runs `work` on a worker as soon as its predecessors are done: operations pushed before that write one of `reads`,
    // or that read or write one of `writes`. Ready operations start in the order of their priority, the highest first;
    // among equal ones, the oldest first. A variable in both lists counts as written. Throws NativeError for a variable
    // of another engine, and after close.
    //
    // If one of its variables has failed, the operation does not run, and its own `writes` fail with the same failure.
    //
    // If a thread waits for an operation of Runner::any that no worker has started, it runs the operation itself,
    // unless as many operations run as there are workers. A few operations may be held for it: see held_start.h.
    void push(std::string name, Work work, const Variables& reads, const Variables& writes, int priority = 0,
              Runner runner = Runner::worker);

    // Waits until all operations pushed before have written the variable and, if `exclusive`, have read it. Returns the
    // failure of the last operation that wrote it, if any; after that the variable is usable again. Throws NativeError
    // in a worker of this engine.
    std::shared_ptr<const Failure> wait(const VariablePtr& variable, bool exclusive, const Poll& poll);

    // Whether wait(variable, false) would return null at once. It may return false in other cases, too.
    bool is_readable(const VariablePtr& variable) const;

    // Waits for all operations pushed before. Returns the oldest failure that no wait has returned yet; after that all
    // variables are usable again.
    std::shared_ptr<const Failure> wait_all(const Poll& poll);

    // Cancels operations that have not started: the variables that they write fail with Cancelled.
    void cancel();

    // Cancels, rejects further operations, and waits for the workers to end. Returns false if a worker still runs after
    // `patience`; that worker ends after its operation. May be called again.
    bool close(std::chrono::milliseconds patience, const Poll& poll);

    int workers() const;
    // Number of operations that were pushed and are not done.
    std::size_t pending() const;

    // Records, while on, which operation ran on which worker, and when.
    void trace(bool on);
    std::vector<Event> take_events();

  private:
    class State;
    // Workers share it: a worker that hangs may outlive the engine.
    std::shared_ptr<State> state_;
};

}  // namespace graphkit
