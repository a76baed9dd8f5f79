// Checks of the steps of a saved program: each operand lies in memory that is large enough and may be read or written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/kernel.h"
#include "runtime/program.h"
#include "runtime/recipe.h"

namespace graphkit {

template <>
struct RecipeFields<Location> {
    static auto of(Location& location) { return std::tie(location.external, location.offset); }
};

// A step of a saved program. A copy is from inputs[0] to outputs[0]. A branch reads a bool, inputs[0], and runs one of
// its blocks: blocks[0] if it is true, else blocks[1]. A failure ends the run with the message `name`.
struct SavedStep {
    enum class Kind : std::uint8_t { kernel, copy, branch, fail };

    Kind kind = Kind::kernel;
    std::string name;
    std::uint64_t kernel = 0;
    std::vector<Location> inputs;
    std::vector<std::string> layouts;  // of each input; "" if it is not packed
    std::vector<Location> outputs;
    Location scratch;
    std::uint64_t bytes = 0;  // of a copy
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

// All methods throw NativeError, which names the step.
class StepCheck {
  public:
    StepCheck(std::uint64_t arena_bytes, int externals);

    void add_external(int external, std::size_t bytes, bool writable);
    void kernel(const SavedStep& step, const Kernel& kernel) const;
    void copy(const SavedStep& step) const;
    void branch(const SavedStep& step) const;

  private:
    struct External {
        bool known = false;
        std::size_t bytes = 0;
        bool writable = false;
    };
    // A piece of memory that a step uses.
    struct Range {
        Location at;
        std::size_t bytes;
        std::string what;
    };

    void inside(const SavedStep& step, const Range& range, std::size_t alignment, bool written) const;
    void outputs_apart(const SavedStep& step, const Kernel& kernel, const std::vector<Range>& inputs,
                       const std::vector<Range>& outputs) const;

    std::uint64_t arena_bytes_;
    std::vector<External> externals_;
};

}  // namespace graphkit
