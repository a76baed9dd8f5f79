// Who waits for a variable of the dependency engine, and in which order they are let in: readers side by side, a writer
// alone. Nothing here locks: all of it belongs to the mutex of the variable's engine.
#pragma once

#include <cstddef>
#include <limits>

#include "runtime/engine.h"

namespace graphkit {

// No operation and no engine has this number.
constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

struct EngineOperation;

// One variable that an operation wants, in line behind those that asked before.
struct Claim {
    EngineOperation* operation;
    bool write;
    Claim* next;
};

// Where a thread that waits for a variable stands in line.
struct Mark {
    bool reached = false;
    bool abandoned = false;  // the thread waits no longer
    std::shared_ptr<const Failure> failure;
};

// Something pushed, or a mark.
struct EngineOperation {
    std::string name;
    Work work;
    int priority = 0;
    std::uint64_t sequence = 0;
    Variables variables;
    std::vector<Claim> claims;  // one for each variable; they stay where they are
    std::size_t missing = 0;  // claims that still wait
    std::shared_ptr<Mark> mark;
    std::list<EngineOperation>::iterator self;
};

class Variable {
  public:
    explicit Variable(std::uint64_t number) : engine(number) {}
    Variable(const Variable&) = delete;
    Variable& operator=(const Variable&) = delete;

    // Lets a claim in, or puts it at the end of the line.
    bool enter(Claim& claim);

    // Ends a use and lets in those in front of the line; adds operations that now have all they need to `ready`.
    void leave(bool write, std::vector<EngineOperation*>& ready);

    const std::uint64_t engine;
    std::uint64_t named_by = kNever;  // the last operation that was pushed with it
    std::shared_ptr<const Failure> failure;  // of its last writer
    std::uint64_t failed_by = 0;  // that writer's sequence number
    std::uint64_t usable_from = 0;  // to later operations the failure is no obstacle: a wait has returned it

  private:
    bool admit(const Claim& claim);

    int readers_ = 0;
    bool writing_ = false;
    Claim* first_ = nullptr;  // those who wait, in order; whoever has been let in is only counted
    Claim* last_ = nullptr;
};

}  // namespace graphkit
