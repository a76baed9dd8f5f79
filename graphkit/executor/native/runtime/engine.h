// The dependency engine: operations that run on worker threads, in an order that follows from what they read and write.
//
// One mutex guards all state of an engine. Nothing that belongs to Python is touched under it: a thread that holds the
// interpreter's lock may wait for the mutex, never the other way round.
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

// An operation was taken back before it ran.
struct Cancelled : NativeError {
    using NativeError::NativeError;
};

// The first thing that went wrong in a chain of operations: what a wait reports.
struct Failure {
    std::uint64_t sequence;  // of the operation that failed
    std::string operation;
    std::exception_ptr error;
};

// Something that operations read and write: an array, a file, a connection. Readers run side by side, a writer alone,
// and everything in the order in which it was pushed.
class Variable;

using VariablePtr = std::shared_ptr<Variable>;
using Variables = std::vector<VariablePtr>;
using Work = std::function<void()>;

class Engine {
  public:
    struct Event {
        std::string operation;
        int worker;
        std::int64_t start;  // nanoseconds of the steady clock
        std::int64_t end;
    };
    // Called every kPollInterval by a thread that waits; may throw to end the wait.
    using Poll = std::function<void()>;
    static constexpr std::chrono::milliseconds kPollInterval{50};

    explicit Engine(int workers);
    // Takes back what has not started. Never waits: workers end by themselves after what they are doing.
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    VariablePtr variable();

    // Runs `work` on a worker as soon as everything pushed before that writes `reads`, or touches `writes`, is done. Of
    // the operations that are ready, those of the highest priority start first, and among these the oldest. A variable
    // in both lists is written. Throws NativeError for a variable of another engine, and after close.
    //
    // When one of its variables has failed, the operation does not run and its own `writes` fail for the same reason.
    void push(std::string name, Work work, const Variables& reads, const Variables& writes, int priority = 0);

    // Waits until what was pushed before has written the variable and, with `exclusive`, read it. Returns the failure
    // of its last writer, if any; the variable is usable again then. Throws NativeError in a worker of this engine.
    std::shared_ptr<const Failure> wait(const VariablePtr& variable, bool exclusive, const Poll& poll);

    // Waits for everything pushed before. Returns the oldest failure that no wait has returned; all variables are
    // usable again then.
    std::shared_ptr<const Failure> wait_all(const Poll& poll);

    // Takes back the operations that have not started: what they write fails with Cancelled.
    void cancel();

    // Cancels, accepts nothing more, and waits for the workers to end. False when one of them still runs after
    // `patience`; it ends with its operation. May be called again.
    bool close(std::chrono::milliseconds patience, const Poll& poll);

    int workers() const;
    // Operations that were pushed and are not done.
    std::size_t pending() const;

    // With tracing, which operation ran where and when.
    void trace(bool on);
    std::vector<Event> take_events();

  private:
    class State;
    // Workers own a share: a stuck one may outlive the engine.
    std::shared_ptr<State> state_;
};

}  // namespace graphkit
