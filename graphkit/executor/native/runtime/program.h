// A program: prepared steps in a tree of blocks, whose operands lie in one arena or in memory that a run provides.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data_dependent.h"
#include "runtime/kernel.h"

namespace graphkit {

// A step got no memory; names it, and how many bytes it wanted.
struct NoMemory : NativeError {
    using NativeError::NativeError;
};

// A run took longer, or a loop more iterations, than it may; names the step.
struct LimitReached : NativeError {
    using NativeError::NativeError;
};

// Where an operand lies: at an offset in the arena, at an offset in a piece of external memory, or nowhere.
struct Location {
    static constexpr int kArena = -1;
    static constexpr int kAbsent = -2;
    int external = kAbsent;
    std::int64_t offset = 0;
};

class Block;
struct Dynamic;

// One thing to do. Operands are positions in an instance's table of pointers.
struct Step {
    enum class Kind : std::uint8_t {
        kernel,
        dynamic,
        data_dependent,
        copy,
        store,
        resize,
        sizes,
        row,
        call,
        branch,
        loop,
        commit,
        fail
    };

    Kind kind;
    std::string name;  // of the node, for errors and traces; what a `fail` says
    const Kernel* kernel = nullptr;
    std::size_t inputs = 0;  // first entry of a kernel's inputs; a copy's source, a row's index, a branch's condition
    std::size_t outputs = 0;  // first entry of the kernel's outputs, or the destination of a copy, sizes or a row
    std::size_t input_entries = 0;  // of a kernel, which may want fewer
    std::size_t output_entries = 0;
    std::size_t scratch = 0;  // entry of the working memory
    std::size_t bytes = 0;  // of a copy; of one element of a store, a resize or a row
    std::size_t index = 0;  // of a call, a branch, a loop, a dynamic or data-dependent kernel among those of its block
    bool wide = true;  // whether a row's index is an int64, else an int32
    int source = -1;  // the buffer that a store, sizes or a row read
    int target = -1;  // the buffer that a store or a resize writes
    Dims dims{};  // what a resize gives the buffer; the axes (first, last) of sizes
};

// An If: one of two blocks.
struct Branch {
    std::unique_ptr<Block> taken[2];  // else, then
};

// What a node needs for operands of certain shapes: a kernel, a call of Python, or no more than bytes to copy.
struct Prepared {
    // Gets the operands and their bytes, and hands over each result with its shape and bytes.
    using Deliver = std::function<void(std::size_t output, const void* data, const Dims& shape, std::size_t bytes)>;
    using Sizes = std::vector<std::size_t>;
    using Compute = std::function<void(const void* const* inputs, const Sizes& bytes, const Deliver& deliver)>;

    const Kernel* kernel = nullptr;
    Compute call;
    std::vector<Dims> shapes;  // of the outputs, where they are known before
    std::vector<std::pair<std::size_t, std::size_t>> views;  // (input, output): the output has the input's bytes
    std::vector<std::pair<std::size_t, std::string>> known;  // an output, and its bytes
    std::size_t scratch_bytes = 0;
};

// A node that is prepared in the run that tells the shapes of its operands. What was prepared is kept for these shapes.
struct Dynamic {
    // An operand in a buffer has the buffer's shape. Of those that decide shapes the elements count as well.
    struct Operand {
        int buffer = -1;  // -1: a shape that never changes
        std::size_t item = 0;  // bytes of an element
        std::int64_t elements = 0;  // without a buffer
        bool by_value = false;  // int64 or 32 bits, by `item`: int32 or a float's
    };
    using Shapes = std::vector<std::optional<Dims>>;  // of operands in buffers; elements of operands by value
    using Make = std::function<std::shared_ptr<const Prepared>(const Shapes& shapes, const Shapes& values)>;

    Make make;
    std::vector<Operand> inputs;
    std::vector<Operand> outputs;
    std::size_t first_input = 0;  // entries, as many as a kernel may have operands
    std::size_t input_entries = 0;
    std::size_t first_output = 0;
    std::size_t number = 0;  // among those of the program
};

// A Loop or a Scan. Entries are positions in the table of pointers; buffers are external memory with a shape.
struct Loop {
    static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

    // What the body reads as a slice of a larger array, or writes as one: iteration i has bytes [i * stride, ...).
    struct Slice {
        int external;  // of the body, set before each iteration
        std::size_t whole;  // entry of the array
        std::int64_t stride;
        bool backwards;
        int buffer = -1;  // of the array, when a run tells its length: then the stride follows from its shape
        std::size_t item = 0;  // bytes of an element, with a buffer
    };
    // A value that one iteration hands to the next one. Two places take turns; the first iteration reads `initial`.
    // A value that is stacked as well, so that `after` is the place of a slice or a stack, needs no places: the next
    // iteration reads the row before its own.
    struct State {
        enum class Kept : std::uint8_t { turns, row, row_from_end };

        std::size_t initial;
        int before;  // external memory, as the body reads it
        int after;  // as the body writes it
        std::size_t turns[2];
        std::size_t final;  // kNone when nobody reads it
        std::size_t bytes;
        Kept kept;
    };
    // The same for a value whose shape may change: `before` and `after` are buffers, which swap what they hold.
    struct DynamicState {
        std::size_t initial;
        int buffer;  // of the initial value; -1: it has the shape `dims`
        Dims dims;
        int before;
        int after;
        int final;  // buffer; -1 when nobody reads it
        std::size_t item;
    };
    // What the body writes in each iteration, one after the other, as many as there will be.
    struct Stack {
        int row;  // external memory of the body: a place in the stack, or a buffer
        int whole;  // buffer
        bool fixed_row;  // whether rows have the shape `dims`, so that the body writes them where they belong
        Dims dims;
        std::size_t item;
        bool backwards;
    };

    std::int64_t trips = -1;  // how often at most, when it is known; else -1
    std::size_t trip_count = kNone;  // an int64 that says how often at most
    std::size_t condition = kNone;  // a bool: whether to start
    std::size_t iteration = kNone;  // an int64 that the body reads
    std::size_t condition_before = kNone;  // a bool that the body reads
    std::size_t condition_after = kNone;  // a bool that the body wrote: whether to go on
    std::vector<State> states;
    std::vector<DynamicState> dynamic_states;
    std::vector<Slice> slices;
    std::vector<Stack> stacks;
    std::unique_ptr<Dynamic> empty;  // tells the shapes of the rows of `stacks` where there are none
    std::unique_ptr<Block> body;
};

// Steps in their order. Filled once; steps refer to the locations, of which all blocks of a program share one table.
class Block {
  public:
    std::vector<Step> steps;
    std::vector<Branch> branches;
    std::vector<Loop> loops;
    std::vector<Dynamic> dynamic;
    std::vector<DataDependentStep> data_dependent;
};

// What all instances of a program have in common. Built step by step, and complete when the first instance is
// made: tables of pointers have as many entries as there are then.
class Program {
  public:
    Program(int threads, std::size_t arena_bytes, int externals)
        : threads_(threads), arena_bytes_(arena_bytes), externals_(externals) {}
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    // A new entry of the table of pointers; entries of one step that follow each other are contiguous.
    std::size_t entry(const Location& location);
    std::size_t entries(const std::vector<Location>& locations);
    // There is external memory of this number.
    void use_external(int external);
    void complete() { complete_ = true; }

    // Throws NativeError when the kernel wants more operands, or memory for one that is absent.
    void add_kernel(Block& block, Step step) const;
    // The same steps with other kernels, one for each; offsets in the arena of this program are places in `offsets`.
    // `made` is empty. Throws NativeError for steps of another kind, and for kernels that want other operands.
    void resize(const std::vector<const Kernel*>& kernels, const std::vector<std::int64_t>& offsets,
                Program& made) const;

    // A number for another dynamic kernel.
    std::size_t take_dynamic() { return dynamic_++; }

    int threads() const { return threads_; }
    std::size_t dynamic() const { return dynamic_; }
    std::size_t arena_bytes() const { return arena_bytes_; }
    int externals() const { return externals_; }
    const std::vector<Location>& locations() const { return locations_; }
    Block& root() { return root_; }
    const Block& root() const { return root_; }

  private:
    int threads_;
    std::size_t arena_bytes_;
    int externals_;
    bool complete_ = false;
    std::size_t dynamic_ = 0;
    std::vector<Location> locations_;
    Block root_;
};

struct Event {
    const Step* step;
    std::int64_t start;  // nanoseconds of the steady clock
    std::int64_t end;
};

// What the buffers of one instance may take, and take.
struct Allowance {
    std::size_t most = std::numeric_limits<std::size_t>::max();
    std::size_t taken = 0;
};

// Aligned memory that grows by factors and never shrinks.
class Buffer {
  public:
    std::byte* data() const { return data_.get(); }
    // Room for so many bytes, of which the first `kept` stay what they are. Throws NoRoom when there is no memory, or
    // none is left of the allowance.
    void reserve(std::size_t bytes, std::size_t kept, Allowance& allowance);

  private:
    struct Free {
        void operator()(std::byte* memory) const;
    };
    std::unique_ptr<std::byte, Free> data_;
    std::size_t capacity_ = 0;
};

// Pointers into an arena: what one run at a time uses. Memory of sizes that only a run tells belongs to it
// as well, and is there for the next run.
class Instance {
  public:
    // Calls number i of the program; `poll` is called now and then between steps, and may throw to stop the run. It is
    // not called any more after a commit step: from there on, old values of states are written over.
    using Call = std::function<void(std::size_t)>;

    // Runs after `move` alone.
    explicit Instance(const Program& program);
    Instance(const Instance&) = delete;
    Instance& operator=(const Instance&) = delete;

    // From here on the arena is there, and its contents are undefined.
    void move(std::byte* arena);
    void set_external(int external, void* memory);
    // A buffer that refers to somebody's memory until it is written again; what it holds.
    void set_buffer(int buffer, void* memory, Dims shape);
    const Dims& shape_of(int buffer) const { return memory_[static_cast<std::size_t>(buffer)].shape; }
    void* data_of(int buffer) const { return memory_[static_cast<std::size_t>(buffer)].data; }
    // Runs every step. Throws NativeError, naming the node, when one fails, NoMemory for want of memory; what `call`
    // throws comes through.
    void run(const Call& call, const std::function<void()>& poll);

    // Of the runs to come: bytes of buffers, iterations of one loop, and when they must have ended (nanoseconds of the
    // steady clock). Not one of them ends a run behind its commit step, but for memory.
    void limit(std::size_t memory, std::int64_t iterations, std::int64_t deadline);

    // Whether the run that goes on, or the last one, has come to its commit step.
    bool committed() const { return committed_; }

    // With tracing, events of all runs since it was switched on.
    void trace(bool on) { tracing_ = on; }
    std::vector<Event> take_events() { return std::exchange(events_, {}); }

  private:
    class Results;
    struct Patch {
        std::size_t entry;
        std::int64_t offset;
    };
    // One piece of external memory. Buffers have a shape, and memory of their own for what steps write there.
    struct Memory {
        void* data = nullptr;
        std::vector<Patch> patches;
        Dims shape;
        Buffer owned;
    };
    // What was prepared for one dynamic kernel, by shapes and elements of its operands.
    struct Known {
        std::map<Dims, std::shared_ptr<const Prepared>> found;
        const Dims* latest_key = nullptr;
        const Prepared* latest = nullptr;
    };

    void run_block(const Block& block);
    void run_step(const Block& block, const Step& step);
    void carry_out(const Block& block, const Step& step);
    void run_kernel(const Kernel& kernel, std::size_t inputs, std::size_t outputs, void* scratch,
                    const std::string& name);
    void copy_row(const Step& step);
    void run_dynamic(const Dynamic& dynamic, const std::string& name);
    void call_dynamic(const Dynamic& dynamic, const Prepared& chosen, const std::string& name);
    void run_data_dependent(const DataDependentStep& step, const std::string& name);
    const Prepared& prepared(const Dynamic& dynamic, const std::string& name);
    std::shared_ptr<const Prepared> prepare(const Dynamic& dynamic, const std::string& name) const;
    std::int64_t elements_of(const Dynamic::Operand& operand) const;
    void append_elements(const Dynamic::Operand& operand, const void* data, Dims& to) const;
    void run_loop(const Loop& loop, const std::string& name);
    std::int64_t start_loop(const Loop& loop, const std::string& name);
    void start_iteration(const Loop& loop, std::int64_t iteration, std::int64_t trips);
    void* latest(const Loop::State& value, std::int64_t iteration) const;
    void end_iteration(const Loop& loop, std::int64_t iteration, std::int64_t trips, const std::string& name);
    void end_loop(const Loop& loop, std::int64_t done, const std::string& name);
    void poll(const std::string& name);
    void ask(const std::string& name);
    bool read_bool(std::size_t entry) const { return *static_cast<const bool*>(table_[entry]); }

    Memory& memory(int external) { return memory_[static_cast<std::size_t>(external)]; }
    void patch(const Memory& memory);
    // Memory of its own for a buffer of this shape, `kept` bytes of which stay.
    void resize(int buffer, const Dims& shape, std::size_t item);
    void store(int target, const void* source, const Dims& shape, std::size_t item);
    void grow(int buffer, std::size_t bytes, std::size_t kept);

    const Program& program_;
    std::byte* arena_ = nullptr;
    std::vector<void*> table_;
    std::vector<Memory> memory_;  // each external memory
    std::vector<Known> known_;  // of each dynamic kernel
    Dims key_;
    Buffer scratch_;  // of dynamic kernels
    const Call* call_ = nullptr;
    const std::function<void()>* poll_ = nullptr;
    std::uint64_t polled_ = 0;  // ticks
    Allowance allowance_;
    std::int64_t most_iterations_ = std::numeric_limits<std::int64_t>::max();
    std::int64_t deadline_ = std::numeric_limits<std::int64_t>::max();
    bool committed_ = false;
    bool tracing_ = false;
    std::vector<Event> events_;
};

}  // namespace graphkit
