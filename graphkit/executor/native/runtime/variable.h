// The queue of operations at a variable of the dependency engine. Reads are admitted together, a write alone, in the
// order of their arrival. Nothing here locks: the mutex of the variable's engine guards all of it.
#pragma once

#include <cstddef>
#include <limits>

#include "runtime/engine.h"

namespace graphkit {

// No operation and no engine has this number.
constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

struct EngineOperation;

// A request of an operation to use one variable, queued behind earlier requests.
struct Claim {
    EngineOperation* operation;
    bool write;
    Claim* next;
};

// The place in the queue of a thread that waits for a variable.
struct Mark {
    bool reached = false;
    bool abandoned = false;  // the thread does not wait any more
    std::shared_ptr<const Failure> failure;
};

// A pushed operation, or a mark.
struct EngineOperation {
    std::string name;
    Work work;
    int priority = 0;
    Runner runner = Runner::worker;
    std::uint64_t sequence = 0;
    Variables variables;
    std::vector<Claim> claims;  // one for each variable; variables hold pointers to them
    std::size_t missing = 0;  // number of claims that are still queued
    std::shared_ptr<Mark> mark;
    std::list<EngineOperation>::iterator self;
};

class Variable {
  public:
    explicit Variable(std::uint64_t number) : engine(number) {}
    Variable(const Variable&) = delete;
    Variable& operator=(const Variable&) = delete;

    // Admits a claim at once (returns true), or appends it to the queue (returns false).
    bool enter(Claim& claim);

    // Ends a use and admits claims from the front of the queue. Adds operations that wait for no variable any more to
    // `ready`.
    void leave(bool write, std::vector<EngineOperation*>& ready);

    // Whether no operation writes it or will do so.
    bool is_readable() const { return !writing_ && first_ == nullptr; }

    const std::uint64_t engine;
    std::uint64_t named_by = kNever;  // sequence number of the last operation pushed with it
    std::shared_ptr<const Failure> failure;  // of the last operation that wrote it
    std::uint64_t failed_by = 0;  // sequence number of that operation
    std::uint64_t usable_from = 0;  // operations from this number on ignore the failure: a wait has returned it

  private:
    bool admit(const Claim& claim);

    int readers_ = 0;
    bool writing_ = false;
    Claim* first_ = nullptr;  // claims that wait, in order; admitted claims are only counted
    Claim* last_ = nullptr;
};

}  // namespace graphkit
