// Checks of the steps of a saved program: each operand lies in memory that is large enough and may be read or written.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/kernel.h"
#include "runtime/program.h"
#include "runtime/recipe.h"

namespace graphkit {

// No array has more bytes than this, so that sums of a few do not overflow.
constexpr std::size_t kMostBytes = std::size_t{1} << 48;

template <>
struct RecipeFields<Location> {
    static auto of(Location& location) { return std::tie(location.external, location.offset); }
};

// External memory for rows whose number is known only in a run. Loops stack the rows, and all of them have this shape.
struct SavedBuffer {
    Dims row;
    std::uint64_t item = 0;  // bytes of an element
};

template <>
struct RecipeFields<SavedBuffer> {
    static auto of(SavedBuffer& b) { return std::tie(b.row, b.item); }
};

// How a step makes its kernel in a run, from the shapes of buffers.
struct SavedSizedKernel {
    // Without a shape: a buffer, or absent.
    struct Operand {
        std::optional<Dims> shape;
        std::uint64_t item = 0;  // bytes of an element
    };
    // Each size is that of an axis of an operand, (operand, axis), or known: (-1, size).
    struct Result {
        std::vector<std::pair<std::int64_t, std::int64_t>> sizes;
        std::uint64_t item = 0;
    };

    std::string recipe;  // of the factory
    std::vector<Operand> operands;
    std::vector<Result> results;
};

template <>
struct RecipeFields<SavedSizedKernel::Operand> {
    static auto of(SavedSizedKernel::Operand& o) { return std::tie(o.shape, o.item); }
};

template <>
struct RecipeFields<SavedSizedKernel::Result> {
    static auto of(SavedSizedKernel::Result& r) { return std::tie(r.sizes, r.item); }
};

template <>
struct RecipeFields<SavedSizedKernel> {
    static auto of(SavedSizedKernel& k) { return std::tie(k.recipe, k.operands, k.results); }
};

// A loop, without the steps of its body; see Loop in runtime/program.h. The body reads and writes rows of slices and
// stacks, and the values of states, in external memory that belongs to the body. These pieces of memory are numbered
// after the existing ones: one for each slice, one for each stack, then for each state one that the body reads, and one
// that it writes. A state with `row` has no piece to write: its new value is the row of that slice or stack.
struct SavedLoop {
    struct Slice {
        Location whole;  // may be a buffer, which the loop then reads
        std::uint64_t stride = 0;  // 0 for a buffer
        bool backwards = false;
        bool written = false;
    };
    // A buffer that gets a row in each iteration.
    struct Stack {
        Location whole;
        bool backwards = false;
    };
    struct State {
        Location initial;
        Location final;  // absent if it is not used
        std::uint64_t bytes = 0;
        std::optional<std::uint64_t> row;  // position among the slices, then the stacks
        std::vector<Location> turns;  // two places; none if there is a row
    };

    std::int64_t trips = -1;
    Location trip_count;
    Location condition;
    Location iteration;
    Location condition_before;
    Location condition_after;
    std::vector<Slice> slices;
    std::vector<Stack> stacks;
    std::vector<State> states;
};

template <>
struct RecipeFields<SavedLoop::Slice> {
    static auto of(SavedLoop::Slice& s) { return std::tie(s.whole, s.stride, s.backwards, s.written); }
};

template <>
struct RecipeFields<SavedLoop::Stack> {
    static auto of(SavedLoop::Stack& s) { return std::tie(s.whole, s.backwards); }
};

template <>
struct RecipeFields<SavedLoop::State> {
    static auto of(SavedLoop::State& s) { return std::tie(s.initial, s.final, s.bytes, s.row, s.turns); }
};

template <>
struct RecipeFields<SavedLoop> {
    static auto of(SavedLoop& l) {
        return std::tie(l.trips, l.trip_count, l.condition, l.iteration, l.condition_before, l.condition_after,
                        l.slices, l.stacks, l.states);
    }
};

// A step of a saved program. A copy is from inputs[0] to outputs[0]. A branch reads a bool, inputs[0], and runs one of
// its blocks: blocks[0] if it is true, else blocks[1]. A loop runs blocks[0]. `sizes` writes the sizes of some axes of
// a buffer, inputs[0]. `row` copies a row of a buffer, inputs[0], whose index is at inputs[1]. A failure ends the run
// with the message `name`.
struct SavedStep {
    enum class Kind : std::uint8_t { kernel, copy, branch, loop, sizes, row, sized, fail };

    Kind kind = Kind::kernel;
    std::string name;
    std::uint64_t kernel = 0;
    std::vector<Location> inputs;
    std::vector<std::string> layouts;  // of each input; "" if it is not packed
    std::vector<Location> outputs;
    Location scratch;
    std::uint64_t bytes = 0;  // of a copy; of a row's index
    std::pair<std::uint64_t, std::uint64_t> axes;  // of sizes: the first one, and the one after the last
    std::optional<SavedSizedKernel> sized;
    std::optional<SavedLoop> loop;
    std::vector<std::vector<SavedStep>> blocks;
};

template <>
struct RecipeLast<SavedStep::Kind> {
    static constexpr auto value = SavedStep::Kind::fail;
};

template <>
struct RecipeCodec<SavedStep> {
    static SavedStep read(RecipeReader& from);
};

// Returns the bytes of an array. Throws NativeError for negative sizes, and if they are too large.
std::size_t checked_bytes(const Dims& shape, ElementType type);

// A piece of memory that a step uses. `what` is its name in errors.
struct MemoryRange {
    Location at;
    std::size_t bytes = 0;
    std::string what;
};

// All methods throw NativeError, which names the step.
class StepCheck {
  public:
    StepCheck(std::uint64_t arena_bytes, int externals);

    void add_external(int external, std::size_t bytes, bool writable);
    void add_constant(int external, std::size_t bytes);
    void add_buffer(int external, const SavedBuffer& buffer);
    void kernel(const SavedStep& step, const Kernel& kernel) const;
    void copy(const SavedStep& step) const;
    void branch(const SavedStep& step) const;
    void sizes(const SavedStep& step) const;
    void row(const SavedStep& step) const;
    void sized(const SavedStep& step) const;
    // Adds the external memory of the body, and returns its first number. It exists until end_loop.
    int begin_loop(const SavedStep& step);
    void end_loop(const SavedStep& step, int first);
    // Whether a location is a buffer.
    bool is_buffer(const Location& location) const;

  private:
    // `parts`: where the memory of a loop's body is, in terms of the steps around the loop. level: how many loops are
    // around the steps that see the memory.
    struct External {
        bool known = false;
        std::size_t bytes = 0;
        bool writable = false;
        bool constant = false;
        std::size_t alignment = kAlignment;
        int level = 0;
        std::vector<MemoryRange> parts;
    };
    // A buffer. While a loop writes it, its memory moves, so that no step of the body may use it. While `readers` loops
    // read its rows, no step of their bodies may write it.
    struct Rows {
        std::size_t axes = 0;
        std::size_t bytes = 0;  // of a row
        bool written = false;
        int readers = 0;
    };

    void inside(const SavedStep& step, const MemoryRange& range, std::size_t alignment, bool written) const;
    bool overlap(const MemoryRange& a, const MemoryRange& b) const;
    int level_of(const Location& location) const;
    std::size_t alignment_of(const Location& location) const;
    void outputs_apart(const SavedStep& step, const Kernel& kernel, const std::vector<MemoryRange>& inputs,
                       const std::vector<MemoryRange>& outputs) const;
    void loop_values(const SavedStep& step) const;
    bool has_axis(const SavedStep& step, std::int64_t operand, std::int64_t axis) const;
    void sized_result(const SavedStep& step, std::size_t number, std::vector<MemoryRange>& others) const;
    const Rows& readable(const SavedStep& step, const Location& location) const;
    Rows& rows(const Location& buffer) { return buffers_.at(buffer.external); }
    External slice(const SavedStep& step, const SavedLoop::Slice& given) const;
    External read_buffer(const SavedStep& step, const SavedLoop::Slice& given);
    External stack(const SavedStep& step, const SavedLoop::Stack& given);
    External state_before(const SavedStep& step, const SavedLoop::State& given) const;
    void follow_rows(const SavedStep& step, const SavedLoop::State& given, External& before) const;
    External state_after(const SavedLoop::State& given) const;
    void loop_apart(const SavedStep& step) const;

    std::uint64_t arena_bytes_;
    std::vector<External> externals_;
    std::map<int, Rows> buffers_;
    int level_ = 0;
};

}  // namespace graphkit
