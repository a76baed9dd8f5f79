// A program: prepared steps in a tree of blocks. Operands lie in one arena, or in external memory that a run provides.
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

// A step could not get memory. The message names the step and the bytes that it wanted.
struct NoMemory : NativeError {
    using NativeError::NativeError;
};

// A run exceeded its time limit, or a loop its number of iterations. The message names the step, and the options of
// Python that set the limit; `text_for_c` names the field of gk_options instead.
struct LimitReached : NativeError {
    // `option`: the argument in Python, and the field in C. `others`: the other options of Python.
    LimitReached(const std::string& text, const std::string& option, const std::string& others)
        : NativeError(text + " (" + option + "=, " + others + ")"), text_for_c(text + " (gk_options." + option + ")") {}

    std::string text_for_c;
};

// The location of an operand: an offset in the arena or in a piece of external memory. kAbsent: there is none.
struct Location {
    static constexpr int kArena = -1;
    static constexpr int kAbsent = -2;
    int external = kAbsent;
    std::int64_t offset = 0;
};

class Block;
struct Dynamic;

// One step of a program. Operands are positions ("entries") in an instance's table of pointers.
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
    std::string name;  // of the node, for errors and traces; the message of a `fail`
    std::size_t inputs = 0;  // first entry of a kernel's inputs; a copy's source, a row's index, a branch's condition
    std::size_t outputs = 0;  // first entry of the kernel's outputs, or the destination of a copy, sizes or a row
    std::size_t input_entries = 0;  // number of entries; the kernel may use fewer
    std::size_t output_entries = 0;
    std::size_t scratch = 0;  // entry of the working memory
    std::size_t bytes = 0;  // of a copy; of one element of a store, a resize or a row
    std::size_t index =
        0;  // of a call or a kernel; or position in the block's branches, loops, dynamic, data_dependent
    bool wide = true;  // whether a row's index is an int64, else an int32
    int source = -1;  // the buffer that a store, sizes or a row read
    int target = -1;  // the buffer that a store or a resize writes
    Dims dims{};  // the buffer's new shape of a resize; the axes [first, last) of sizes
};

// An If: runs one of two blocks.
struct Branch {
    std::unique_ptr<Block> taken[2];  // else, then
};

// A node prepared for operands of certain shapes: a kernel, a Python function, or only copies of bytes.
struct Prepared {
    // A Compute function gets the operands and their sizes in bytes, and calls `deliver` for each result.
    using Deliver = std::function<void(std::size_t output, const void* data, const Dims& shape, std::size_t bytes)>;
    using Sizes = std::vector<std::size_t>;
    using Compute = std::function<void(const void* const* inputs, const Sizes& bytes, const Deliver& deliver)>;

    const Kernel* kernel = nullptr;
    Compute call;
    std::vector<Dims> shapes;  // of the outputs, if they are known before the run
    // (input, output): the output is a copy of the input's bytes
    std::vector<std::pair<std::size_t, std::size_t>> views;
    std::vector<std::pair<std::size_t, std::string>> known;  // (output, its bytes): outputs that are constant
    std::size_t scratch_bytes = 0;
};

// A node that is prepared during a run, when the shapes of its operands are known. The result is cached for these
// shapes.
struct Dynamic {
    // An operand in a buffer has the shape of the buffer. If `by_value`, the node also depends on the operand's
    // elements.
    struct Operand {
        int buffer = -1;  // -1: not in a buffer, the shape never changes
        std::size_t item = 0;  // bytes of an element
        std::int64_t elements = 0;  // number of elements, if not in a buffer
        bool by_value = false;  // whether the elements matter: int64, or int32 or float bits if `item` is 4
    };
    using Shapes = std::vector<std::optional<Dims>>;  // of operands in buffers; or the elements of operands by value
    using Make = std::function<std::shared_ptr<const Prepared>(const Shapes& shapes, const Shapes& values)>;

    Make make;
    std::vector<Operand> inputs;
    std::vector<Operand> outputs;
    std::size_t first_input = 0;  // first entry; there are as many as a kernel may have operands
    std::size_t input_entries = 0;
    std::size_t first_output = 0;
    std::size_t number = 0;  // among the dynamic kernels of the program
};

// A Loop or a Scan. Entries are positions in the table of pointers; buffers are external memory with a shape.
struct Loop {
    static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

    // A slice of a larger array that the body reads or writes: iteration i uses the bytes [i * stride, (i + 1) *
    // stride).
    struct Slice {
        int external;  // external memory of the body, set before each iteration
        std::size_t whole;  // entry of the array
        std::int64_t stride;
        bool backwards;
        int buffer = -1;  // of the array, if its shape is dynamic: the stride then follows from it
        std::size_t item = 0;  // bytes of an element, if there is a buffer
    };
    // A value that each iteration passes to the next one. Two places alternate; the first iteration reads `initial`. If
    // the value is also stacked, `after` is a place in a slice or a stack. The value then needs no places of its own:
    // the next iteration reads the previous row.
    struct State {
        enum class Kept : std::uint8_t { turns, row, row_from_end };

        std::size_t initial;
        int before;  // external memory that the body reads
        int after;  // external memory that the body writes
        std::size_t turns[2];
        std::size_t final;  // kNone if it is not used
        std::size_t bytes;
        Kept kept;
    };
    // Like State, for a value whose shape may change: `before` and `after` are buffers, which are swapped.
    struct DynamicState {
        std::size_t initial;
        int buffer;  // of the initial value; -1: its shape is `dims`
        Dims dims;
        int before;
        int after;
        int final;  // buffer; -1 if it is not used
        std::size_t item;
    };
    // A stack of what the body writes in each iteration, for a number of iterations that is not known before.
    struct Stack {
        int row;  // external memory of the body: a place in the stack, or a buffer
        int whole;  // buffer
        bool fixed_row;  // all rows have the shape `dims`: the body writes them in place
        Dims dims;
        std::size_t item;
        bool backwards;
    };

    std::int64_t trips = -1;  // largest number of iterations; -1 if it is not known
    std::size_t trip_count = kNone;  // an int64: largest number of iterations
    std::size_t condition = kNone;  // a bool: whether to start
    std::size_t iteration = kNone;  // an int64 that the body reads
    std::size_t condition_before = kNone;  // a bool that the body reads
    std::size_t condition_after = kNone;  // a bool that the body writes: whether to continue
    std::vector<State> states;
    std::vector<DynamicState> dynamic_states;
    std::vector<Slice> slices;
    std::vector<Stack> stacks;
    std::unique_ptr<Dynamic> empty;  // gives the shapes of the rows of `stacks` if there were no iterations
    std::unique_ptr<Block> body;
};

// Steps in order. A block is filled once. All blocks of a program share one table of locations.
class Block {
  public:
    std::vector<Step> steps;
    std::vector<Branch> branches;
    std::vector<Loop> loops;
    std::vector<Dynamic> dynamic;
    std::vector<DataDependentStep> data_dependent;

    // Whether all sizes in this block, and in those inside, are known before a run.
    bool is_sized() const;
    // Whether all steps are kernels.
    bool has_only_kernels() const;
};

// The part of a program that all its instances share. It is built step by step, then completed: an instance's table of
// pointers has as many entries as the program has at that time.
class Program {
  public:
    Program(int threads, std::size_t arena_bytes, int externals);
    // Makes a program with the steps of `other`, which is complete, but with other kernels, one for each kernel step.
    // They must have as many operands as those of `other`. Locations in the arena of `other` hold positions in
    // `offsets`. Bytes of copies, and bytes, strides and iterations of loops hold positions in `sizes` (see
    // needs_sizes). Throws NativeError if `other` has steps or buffers whose sizes are known only in a run.
    Program(const Program& other, std::vector<const Kernel*> kernels, std::vector<std::int64_t> offsets,
            std::size_t arena_bytes, std::vector<std::int64_t> sizes);
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    // Adds an entry to the table of pointers. The entries of one call of `entries` are contiguous.
    std::size_t entry(const Location& location);
    std::size_t entries(const std::vector<Location>& locations);
    // Declares external memory of this number.
    void use_external(int external);
    void complete();

    // Adds a kernel step. Throws NativeError if the kernel needs more operands, or memory for an operand that is
    // absent.
    void add_kernel(Block& block, Step step, const Kernel& kernel);

    // Returns the number of a further dynamic kernel.
    std::size_t take_dynamic() { return code_->dynamic++; }

    int threads() const { return threads_; }
    std::size_t dynamic() const { return code_->dynamic; }
    std::size_t arena_bytes() const { return arena_bytes_; }
    int externals() const { return code_->externals; }
    std::size_t entry_count() const { return code_->locations.size(); }
    const Kernel& kernel(const Step& step) const { return *kernels_[step.index]; }
    // Whether some steps hold positions of sizes if other programs are made from this one. It must be complete.
    bool needs_sizes() const { return code_->has_sizes; }
    // Returns the number in a step that may hold the position of a size. Negative numbers are never positions.
    std::int64_t size(std::int64_t held) const {
        return sizes_.empty() || held < 0 ? held : sizes_[static_cast<std::size_t>(held)];
    }
    Block& root() { return code_->root; }
    const Block& root() const { return code_->root; }

    // Writes the addresses of operands in this arena to a table of pointers.
    void point_to_arena(std::byte* arena, std::vector<void*>& table) const;
    // Writes the addresses of operands in external memory to a table of pointers. null: they are absent.
    void point_to_external(int external, void* data, std::vector<void*>& table) const;

  private:
    // Steps, and locations of their operands. Programs that differ only in kernels and offsets share it.
    struct Code {
        int externals = 0;
        std::size_t dynamic = 0;
        std::vector<Location> locations;
        Block root;
        bool complete = false;
        bool is_sized = true;  // all sizes are known before a run
        bool has_sizes = false;  // see needs_sizes
        // The entries in each external memory: those of number i are entries[first[i]] to entries[first[i + 1] - 1].
        std::vector<std::uint32_t> entries;
        std::vector<std::uint32_t> first;
    };

    int threads_;
    std::size_t arena_bytes_;
    std::shared_ptr<Code> code_;
    std::vector<const Kernel*> kernels_;
    std::vector<std::int64_t> offsets_;  // empty: locations in the arena hold offsets
    std::vector<std::int64_t> sizes_;  // empty: steps hold numbers, not positions of sizes
};

struct Event {
    const Step* step;
    std::int64_t start;  // nanoseconds of the steady clock
    std::int64_t end;
};

// Limit and current size, in bytes, of an instance's buffers.
struct Allowance {
    std::size_t most = std::numeric_limits<std::size_t>::max();
    std::size_t taken = 0;
    std::size_t lent = 0;  // memory of the caller that buffers use
};

// Aligned memory that grows geometrically and never shrinks.
class Buffer {
  public:
    std::byte* data() const { return data_.get(); }
    std::size_t capacity() const { return capacity_; }
    // Makes room for `bytes` bytes and keeps the contents of the first `kept`. Throws NoRoom if there is no memory, or
    // if the allowance is used up.
    void reserve(std::size_t bytes, std::size_t kept, Allowance& allowance);

  private:
    struct Free {
        void operator()(std::byte* memory) const;
    };
    std::unique_ptr<std::byte, Free> data_;
    std::size_t capacity_ = 0;
};

// The state of one run at a time: pointers into an arena, and the buffers whose sizes are known only during a run.
// Buffers are reused by the next run.
class Instance {
  public:
    // `Call` calls function number i of the program. `poll` is called from time to time between steps, and may throw to
    // stop the run. It is not called after a commit step: from then on old values of states are overwritten.
    using Call = std::function<void(std::size_t)>;

    // The program must be complete. `move` must be called before the first run.
    explicit Instance(const Program& program);
    Instance(const Instance&) = delete;
    Instance& operator=(const Instance&) = delete;

    // Runs another program from now on, which has the same steps and locations (see the second constructor of Program).
    // Pointers to external memory stay. `move` must be called before the next run.
    void rebind(const Program& program) {
        program_ = &program;
        arena_ = nullptr;
    }
    // Uses this arena from now on. Its contents are undefined.
    void move(std::byte* arena);
    void set_external(int external, void* memory);
    // Makes a buffer refer to the caller's memory until a step writes the buffer; shape_of and data_of return what it
    // holds.
    void set_buffer(int buffer, void* memory, Dims shape);
    // Offers memory of the caller for what later steps write to a buffer. A step that needs more uses memory of the
    // instance. take_back ends the offer, and returns whether the buffer is in the offered memory.
    void lend(int buffer, void* data, std::size_t bytes);
    bool take_back(int buffer);
    const Dims& shape_of(int buffer) const { return memory_[static_cast<std::size_t>(buffer)].shape; }
    void* data_of(int buffer) const { return memory_[static_cast<std::size_t>(buffer)].data; }
    // Runs all steps. If a step fails, throws NativeError, which names the node; if memory is missing, throws NoMemory.
    // Exceptions of `call` are passed on.
    void run(const Call& call, const std::function<void()>& poll);
    // The same for a run of many parts: begin_parts, then run_part for each of them. A part does not restart the time
    // until the next poll, because it may be shorter.
    void begin_parts();
    void run_part(const Call& call, const std::function<void()>& poll);
    void run_timed_part(const Call& call, const std::function<void()>& poll);
    // Nanoseconds of the latest timed part; 0 before the first one.
    std::int64_t part_nanoseconds() const { return part_nanoseconds_; }

    // Sets limits of later runs: bytes of buffers, iterations of one loop, and the time by which they must end
    // (nanoseconds of the steady clock). After a commit step only the memory limit can end a run.
    void limit(std::size_t memory, std::int64_t iterations, std::int64_t deadline);

    // Whether the current or the last run has reached its commit step.
    bool committed() const { return committed_; }

    // While tracing is on, records an event for each step. take_events returns and removes them.
    void trace(bool on) { tracing_ = on; }
    std::vector<Event> take_events() { return std::exchange(events_, {}); }

  private:
    class Results;
    // One piece of external memory. A buffer also has a shape, and owns memory for what steps write.
    struct Memory {
        void* data = nullptr;
        Dims shape;
        Buffer owned;
        void* lent = nullptr;
        std::size_t lent_bytes = 0;
        std::size_t used_of_lent = 0;
    };
    // The prepared kernels of one dynamic node, by the shapes and elements of its operands.
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
    // Any byte may be there: callers and files can pass others than 0 and 1.
    bool read_bool(std::size_t entry) const { return *static_cast<const std::uint8_t*>(table_[entry]) != 0; }

    Memory& memory(int external) { return memory_[static_cast<std::size_t>(external)]; }
    void patch(int external) { program_->point_to_external(external, memory(external).data, table_); }
    // `resize` gives a buffer a shape, and memory that is its own or lent; `grow` keeps the first `kept` bytes, and
    // uses no lent memory.
    void resize(int buffer, const Dims& shape, std::size_t item);
    void store(int target, const void* source, const Dims& shape, std::size_t item);
    void grow(int buffer, std::size_t bytes, std::size_t kept);

    const Program* program_;
    std::byte* arena_ = nullptr;
    std::vector<void*> table_;
    std::vector<Memory> memory_;  // by number of the external memory
    std::vector<Known> known_;  // by number of the dynamic kernel
    Dims key_;
    Buffer scratch_;  // of dynamic kernels
    const Call* call_ = nullptr;
    const std::function<void()>* poll_ = nullptr;
    std::uint64_t polled_ = 0;  // tick count of the last poll
    Allowance allowance_;
    std::int64_t most_iterations_ = std::numeric_limits<std::int64_t>::max();
    std::int64_t deadline_ = std::numeric_limits<std::int64_t>::max();
    std::int64_t part_nanoseconds_ = 0;
    bool committed_ = false;
    bool tracing_ = false;
    std::vector<Event> events_;
};

}  // namespace graphkit
