// A part of a saved program: steps for all examples of a batch, or for some, which run several times.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "c_interface/step_check.h"
#include "runtime/kernel.h"
#include "runtime/program.h"
#include "runtime/recipe.h"

namespace graphkit {

// Where the runs of a part find one input or output: run i uses `bytes` bytes at offset + i * stride.
struct SavedSlice {
    std::uint64_t offset = 0;
    std::uint64_t stride = 0;
    std::uint64_t bytes = 0;
};

template <>
struct RecipeFields<SavedSlice> {
    static auto of(SavedSlice& s) { return std::tie(s.offset, s.stride, s.bytes); }
};

struct SavedPart {
    std::uint64_t arena_bytes = 0;
    std::uint64_t runs = 1;
    std::vector<SavedSlice> slices;  // of the inputs, then of the outputs
    std::vector<SavedBuffer> buffers;
    std::vector<SavedStep> steps;
};

template <>
struct RecipeFields<SavedPart> {
    static auto of(SavedPart& p) { return std::tie(p.arena_bytes, p.runs, p.slices, p.buffers, p.steps); }
};

// The external memory of a program: first the inputs, then the outputs, then the constants. The buffers of a part
// follow, and then the memory of the bodies of its loops.
struct SavedMemory {
    std::vector<std::size_t> inputs;   // bytes
    std::vector<std::size_t> outputs;  // bytes
    std::vector<std::pair<const char*, std::size_t>> constants;

    std::size_t ports() const { return inputs.size() + outputs.size(); }
    std::size_t externals() const { return ports() + constants.size(); }
};

// Limits of a run.
struct RunLimits {
    std::int64_t iterations = std::numeric_limits<std::int64_t>::max();  // of one loop
    std::int64_t deadline = std::numeric_limits<std::int64_t>::max();    // nanoseconds of the steady clock
};

using Kernels = std::vector<std::unique_ptr<Kernel>>;

class ProgramPart {
  public:
    // The memory of constants, and the kernels, must outlive the part. Throws NativeError if a step would leave its
    // memory.
    ProgramPart(const SavedPart& saved, const SavedMemory& memory, const Kernels& kernels, int threads);
    ~ProgramPart();
    ProgramPart(const ProgramPart&) = delete;
    ProgramPart& operator=(const ProgramPart&) = delete;

    // Runs the part on the memory of all inputs, then all outputs. Threads may call this at the same time.
    // Throws LimitReached.
    void run(const std::vector<std::byte*>& ports, const RunLimits& limits);

  private:
    struct Runner;
    using RunnerPtr = std::unique_ptr<Runner>;

    void check_slices(const SavedMemory& memory) const;
    StepCheck checked_memory(const SavedPart& saved, const SavedMemory& memory) const;
    void add_steps(Block& block, const std::vector<SavedStep>& steps, StepCheck& check, const Kernels& kernels);
    void add_branch(Block& block, const SavedStep& given, StepCheck& check, const Kernels& kernels);
    void add_loop(Block& block, const SavedStep& given, StepCheck& check, const Kernels& kernels);
    void add_sized(Block& block, const SavedStep& given, StepCheck& check);
    void add_rows(Loop& loop, const SavedLoop& saved, const StepCheck& check, int first);
    void add_states(Loop& loop, const SavedLoop& saved, int first);
    const SavedBuffer& buffer(const Location& location) const;
    void add_kernel(Block& block, const SavedStep& given, const Kernel& kernel);
    RunnerPtr take(const RunLimits& limits);
    RunnerPtr taken();
    void give(RunnerPtr runner);
    void run_together(const std::vector<std::byte*>& ports, std::int64_t runs, const RunLimits& limits);

    std::int64_t runs_;
    std::vector<SavedSlice> slices_;
    std::vector<std::pair<int, const char*>> constants_;  // external memory, and its address
    int first_buffer_;
    std::vector<SavedBuffer> buffers_;
    Program program_;
    std::mutex mutex_;
    std::vector<RunnerPtr> idle_;
};

}  // namespace graphkit
