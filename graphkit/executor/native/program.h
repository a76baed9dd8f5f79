// A program: prepared steps in a tree of regions, whose operands lie in one arena or in memory that a run provides.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernel.h"

namespace graphkit {

// Where an operand lies: at an offset in the arena, at an offset in a piece of external memory, or nowhere.
struct Place {
    static constexpr int kArena = -1;
    static constexpr int kAbsent = -2;
    int external = kAbsent;
    std::int64_t offset = 0;
};

class Region;

// One thing to do. Operands are positions in an instance's table of pointers.
struct Step {
    enum class Kind : std::uint8_t { kernel, copy, call, branch, loop, fail };

    Kind kind;
    std::string name;  // of the node, for errors and traces; what a `fail` says
    const Kernel* kernel = nullptr;
    std::size_t inputs = 0;   // first entry of the kernel's inputs, a copy's source, or a branch's condition
    std::size_t outputs = 0;  // first entry of the kernel's outputs, or a copy's destination
    std::size_t scratch = 0;  // entry of the working memory
    std::size_t bytes = 0;    // of a copy
    std::size_t index = 0;    // of a call, a branch or a loop among those of its region
};

// An If: one of two regions.
struct Branch {
    std::unique_ptr<Region> taken[2];  // else, then
};

// A Loop or a Scan. Entries are positions in the table of pointers.
struct Loop {
    static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

    // What the body reads as a slice of a larger array, or writes as one: iteration i has bytes [i * stride, ...).
    struct Slice {
        int external;       // of the body, set before each iteration
        std::size_t whole;  // entry of the array
        std::int64_t stride;
        bool backwards;
    };
    // A value that one iteration hands to the next one.
    struct Carried {
        std::size_t initial;
        std::size_t before;  // as the body reads it
        std::size_t after;   // as the body wrote it
        std::size_t final;   // kNone when nobody reads it
        std::size_t bytes;
    };

    std::int64_t trips = -1;              // how often at most, when it is known; else -1
    std::size_t trip_count = kNone;       // an int64 that says how often at most
    std::size_t condition = kNone;        // a bool: whether to start
    std::size_t iteration = kNone;        // an int64 that the body reads
    std::size_t condition_before = kNone; // a bool that the body reads
    std::size_t condition_after = kNone;  // a bool that the body wrote: whether to go on
    std::vector<Carried> carried;
    std::vector<Slice> slices;
    std::unique_ptr<Region> body;
};

// Steps in their order. Filled once; steps refer to the operands of `layout`, which all regions of a program share.
class Region {
  public:
    std::vector<Step> steps;
    std::vector<Branch> branches;
    std::vector<Loop> loops;
};

// What all instances of a program have in common. Built step by step, then frozen by the first instance.
class Program {
  public:
    Program(int threads, std::size_t arena_bytes, int externals)
        : threads_(threads), arena_bytes_(arena_bytes), externals_(externals) {}
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    // A new entry of the table of pointers; entries of one step that follow each other are contiguous.
    std::size_t entry(const Place& place);
    std::size_t entries(const std::vector<Place>& places);
    // There is external memory of this number.
    void use_external(int external) { externals_ = std::max(externals_, external + 1); }

    int threads() const { return threads_; }
    std::size_t arena_bytes() const { return arena_bytes_; }
    int externals() const { return externals_; }
    const std::vector<Place>& places() const { return places_; }
    Region& root() { return root_; }
    const Region& root() const { return root_; }

  private:
    int threads_;
    std::size_t arena_bytes_;
    int externals_;
    std::vector<Place> places_;
    Region root_;
};

struct Event {
    const Step* step;
    std::int64_t start;  // nanoseconds of the steady clock
    std::int64_t end;
};

// One arena with the pointers into it: what one run at a time uses.
class Instance {
  public:
    // Calls number i of the program; `poll` is called now and then in long loops, and may throw to stop the run.
    using Call = std::function<void(std::size_t)>;

    Instance(const Program& program, std::byte* arena);
    Instance(const Instance&) = delete;
    Instance& operator=(const Instance&) = delete;

    void set_external(int external, void* memory);
    // Runs every step. Throws NativeError, naming the node, when one fails; what `call` throws comes through.
    void run(const Call& call, const std::function<void()>& poll);

    // With tracing, events of all runs since it was switched on.
    void trace(bool on) { tracing_ = on; }
    std::vector<Event> take_events() { return std::exchange(events_, {}); }

  private:
    struct Patch {
        std::size_t entry;
        std::int64_t offset;
    };

    void run_region(const Region& region);
    void run_step(const Region& region, const Step& step);
    void run_loop(const Loop& loop);
    bool read_bool(std::size_t entry) const { return *static_cast<const bool*>(table_[entry]); }

    const Program& program_;
    std::vector<void*> table_;
    std::vector<std::vector<Patch>> patches_;  // of each external memory
    std::vector<void*> current_;               // each external memory
    const Call* call_ = nullptr;
    const std::function<void()>* poll_ = nullptr;
    std::chrono::steady_clock::time_point polled_;
    bool tracing_ = false;
    std::vector<Event> events_;
};

}  // namespace graphkit
