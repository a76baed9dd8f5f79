#include "c_interface/program_part.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "c_interface/sized_step.h"
#include "runtime/parts.h"

namespace graphkit {
namespace {

constexpr std::uint64_t kMostRuns = std::uint64_t{1} << 31;

}  // namespace

// Memory and kernels of one run. Concurrent runs use different runners.
struct ProgramPart::Runner {
    struct Free {
        void operator()(void* memory) const { std::free(memory); }
    };

    // Zero at first: a damaged file may read memory that no step has written.
    std::unique_ptr<void, Free> memory;
    Instance instance;

    explicit Runner(const Program& program) : memory(std::calloc(1, room(program))), instance(program) {
        if (memory == nullptr) {
            throw std::bad_alloc();
        }
        void* first = memory.get();
        std::size_t left = room(program);
        instance.move(static_cast<std::byte*>(std::align(kAlignment, program.arena_bytes(), first, left)));
    }

    // `calloc` aligns to less than kAlignment.
    static std::size_t room(const Program& program) { return aligned(program.arena_bytes()) + kAlignment; }
};

ProgramPart::ProgramPart(const SavedPart& saved, const SavedMemory& memory, const Kernels& kernels, int threads)
    : runs_(static_cast<std::int64_t>(saved.runs)),
      slices_(saved.slices),
      first_buffer_(static_cast<int>(memory.externals())),
      buffers_(saved.buffers),
      program_(threads, saved.arena_bytes, static_cast<int>(memory.externals() + saved.buffers.size())) {
    if (saved.runs < 1 || saved.runs > kMostRuns) {
        throw NativeError("the number of runs of a part is out of range");
    }
    check_slices(memory);
    StepCheck check = checked_memory(saved, memory);
    add_steps(program_.root(), saved.steps, check, kernels);
    program_.complete();
    for (std::size_t i = 0; i < memory.constants.size(); ++i) {
        constants_.emplace_back(static_cast<int>(memory.ports() + i), memory.constants[i].first);
    }
}

ProgramPart::~ProgramPart() = default;

void ProgramPart::check_slices(const SavedMemory& memory) const {
    if (slices_.size() != memory.ports()) {
        throw NativeError("a part has another number of inputs and outputs");
    }
    const auto last = static_cast<std::uint64_t>(runs_ - 1);
    for (std::size_t i = 0; i < slices_.size(); ++i) {
        const bool is_output = i >= memory.inputs.size();
        const std::uint64_t room = is_output ? memory.outputs[i - memory.inputs.size()] : memory.inputs[i];
        const auto& [offset, stride, bytes] = slices_[i];
        std::uint64_t end = 0;
        if (__builtin_mul_overflow(last, stride, &end) || __builtin_add_overflow(end, offset, &end) ||
            __builtin_add_overflow(end, bytes, &end) || end > room) {
            throw NativeError("a part is outside of its input or output");
        }
        if (is_output && last > 0 && stride < bytes) {
            throw NativeError("parts of an output overlap");
        }
    }
}

StepCheck ProgramPart::checked_memory(const SavedPart& saved, const SavedMemory& memory) const {
    StepCheck check(saved.arena_bytes, static_cast<int>(memory.externals() + buffers_.size()));
    for (std::size_t i = 0; i < slices_.size(); ++i) {
        check.add_external(static_cast<int>(i), slices_[i].bytes, i >= memory.inputs.size());
    }
    for (std::size_t i = 0; i < memory.constants.size(); ++i) {
        check.add_constant(static_cast<int>(memory.ports() + i), memory.constants[i].second);
    }
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
        check.add_buffer(first_buffer_ + static_cast<int>(i), buffers_[i]);
    }
    return check;
}

void ProgramPart::add_kernel(Block& block, const SavedStep& given, const Kernel& kernel) {
    Step step{Step::Kind::kernel, given.name};
    step.inputs = program_.entries(given.inputs);
    step.input_entries = given.inputs.size();
    step.outputs = program_.entries(given.outputs);
    step.output_entries = given.outputs.size();
    step.scratch = program_.entry(given.scratch);
    program_.add_kernel(block, std::move(step), kernel);
}

void ProgramPart::add_steps(Block& block, const std::vector<SavedStep>& steps, StepCheck& check,
                            const Kernels& kernels) {
    for (const SavedStep& given : steps) {
        switch (given.kind) {
            case SavedStep::Kind::kernel:
                if (given.kernel >= kernels.size()) {
                    throw NativeError(given.name + ": there is no kernel with this number");
                }
                check.kernel(given, *kernels[given.kernel]);
                add_kernel(block, given, *kernels[given.kernel]);
                break;
            case SavedStep::Kind::copy: {
                check.copy(given);
                Step step{Step::Kind::copy, given.name};
                step.inputs = program_.entry(given.inputs[0]);
                step.outputs = program_.entry(given.outputs[0]);
                step.bytes = given.bytes;
                block.steps.push_back(std::move(step));
                break;
            }
            case SavedStep::Kind::branch:
                add_branch(block, given, check, kernels);
                break;
            case SavedStep::Kind::loop:
                add_loop(block, given, check, kernels);
                break;
            case SavedStep::Kind::sizes: {
                check.sizes(given);
                Step step{Step::Kind::sizes, given.name};
                step.source = given.inputs[0].external;
                step.dims = {static_cast<std::int64_t>(given.axes.first), static_cast<std::int64_t>(given.axes.second)};
                step.outputs = program_.entry(given.outputs[0]);
                block.steps.push_back(std::move(step));
                break;
            }
            case SavedStep::Kind::row: {
                check.row(given);
                Step step{Step::Kind::row, given.name};
                step.source = given.inputs[0].external;
                step.bytes = buffer(given.inputs[0]).item;
                step.wide = given.bytes == sizeof(std::int64_t);
                step.inputs = program_.entry(given.inputs[1]);
                step.outputs = program_.entry(given.outputs[0]);
                block.steps.push_back(std::move(step));
                break;
            }
            case SavedStep::Kind::sized:
                add_sized(block, given, check);
                break;
            case SavedStep::Kind::fail:
                block.steps.push_back(Step{Step::Kind::fail, given.name});
                break;
        }
    }
}

void ProgramPart::add_branch(Block& block, const SavedStep& given, StepCheck& check, const Kernels& kernels) {
    check.branch(given);
    Step step{Step::Kind::branch, given.name};
    step.inputs = program_.entry(given.inputs[0]);
    step.index = block.branches.size();
    block.steps.push_back(std::move(step));
    Branch branch;  // Branch::taken: else, then
    for (std::size_t part = 0; part < 2; ++part) {
        branch.taken[1 - part] = std::make_unique<Block>();
        add_steps(*branch.taken[1 - part], given.blocks[part], check, kernels);
    }
    block.branches.push_back(std::move(branch));
}

void ProgramPart::add_loop(Block& block, const SavedStep& given, StepCheck& check, const Kernels& kernels) {
    const SavedLoop& saved = given.loop.value_or(SavedLoop{});
    const int first = check.begin_loop(given);
    const auto optional_entry = [&](const Location& location) {
        return location.external == Location::kAbsent ? Loop::kNone : program_.entry(location);
    };
    Step step{Step::Kind::loop, given.name};
    step.index = block.loops.size();
    block.steps.push_back(std::move(step));
    Loop loop;
    loop.trips = saved.trips;
    loop.trip_count = optional_entry(saved.trip_count);
    loop.condition = optional_entry(saved.condition);
    loop.iteration = optional_entry(saved.iteration);
    loop.condition_before = optional_entry(saved.condition_before);
    loop.condition_after = optional_entry(saved.condition_after);
    add_rows(loop, saved, check, first);
    add_states(loop, saved, first + static_cast<int>(saved.slices.size() + saved.stacks.size()));
    loop.body = std::make_unique<Block>();
    add_steps(*loop.body, given.blocks[0], check, kernels);
    check.end_loop(given, first);
    block.loops.push_back(std::move(loop));
}

void ProgramPart::add_sized(Block& block, const SavedStep& given, StepCheck& check) {
    check.sized(given);
    Dynamic made;
    std::vector<std::optional<SavedBuffer>> results;
    const auto operand = [&](const Location& at, std::uint64_t item) {
        if (check.is_buffer(at) && buffer(at).item != item) {
            throw NativeError(given.name + ": an operand has elements of another size than its buffer");
        }
        return Dynamic::Operand{check.is_buffer(at) ? at.external : -1, item};
    };
    for (std::size_t i = 0; i < given.inputs.size(); ++i) {
        made.inputs.push_back(operand(given.inputs[i], given.sized->operands[i].item));
    }
    for (std::size_t i = 0; i < given.outputs.size(); ++i) {
        made.outputs.push_back(operand(given.outputs[i], given.sized->results[i].item));
        results.push_back(made.outputs[i].buffer < 0 ? std::nullopt : std::optional(buffer(given.outputs[i])));
    }
    made.make = sized_kernel_maker(given, std::move(results));
    made.first_input = program_.entries(given.inputs);
    made.input_entries = given.inputs.size();
    made.first_output = program_.entries(given.outputs);
    made.number = program_.take_dynamic();
    Step step{Step::Kind::dynamic, given.name};
    step.index = block.dynamic.size();
    block.dynamic.push_back(std::move(made));
    block.steps.push_back(std::move(step));
}

const SavedBuffer& ProgramPart::buffer(const Location& location) const {
    return buffers_[static_cast<std::size_t>(location.external - first_buffer_)];
}

// Adds the slices and stacks of a loop. first: the number of the external memory of its body.
void ProgramPart::add_rows(Loop& loop, const SavedLoop& saved, const StepCheck& check, int first) {
    int next = first;
    for (const SavedLoop::Slice& slice : saved.slices) {
        program_.use_external(next);
        Loop::Slice& made = loop.slices.emplace_back(
            Loop::Slice{next++, program_.entry(slice.whole), static_cast<std::int64_t>(slice.stride), slice.backwards});
        if (check.is_buffer(slice.whole)) {
            made.buffer = slice.whole.external;
            made.item = buffer(slice.whole).item;
        }
    }
    for (const SavedLoop::Stack& stack : saved.stacks) {
        const SavedBuffer& rows = buffer(stack.whole);
        program_.use_external(next);
        loop.stacks.push_back({next++, stack.whole.external, true, rows.row, rows.item, stack.backwards});
    }
}

// Adds the states of a loop, after its slices and stacks. first: the number of the external memory of the states.
void ProgramPart::add_states(Loop& loop, const SavedLoop& saved, int first) {
    using Kept = Loop::State::Kept;
    int next = first;
    const auto new_external = [&] {
        program_.use_external(next);
        return next++;
    };
    for (const SavedLoop::State& state : saved.states) {
        const std::size_t initial = program_.entry(state.initial);
        const std::size_t final = state.final.external == Location::kAbsent ? Loop::kNone : program_.entry(state.final);
        const int before = new_external();
        if (state.row) {
            const std::size_t slices = loop.slices.size();
            const bool in_slice = *state.row < slices;
            const int after = in_slice ? loop.slices[*state.row].external : loop.stacks[*state.row - slices].row;
            const bool backwards =
                in_slice ? loop.slices[*state.row].backwards : loop.stacks[*state.row - slices].backwards;
            loop.states.push_back(
                {initial, before, after, {0, 0}, final, state.bytes, backwards ? Kept::row_from_end : Kept::row});
        } else {
            const std::size_t turns[2] = {program_.entry(state.turns[0]), program_.entry(state.turns[1])};
            loop.states.push_back(
                {initial, before, new_external(), {turns[0], turns[1]}, final, state.bytes, Kept::turns});
        }
    }
}

ProgramPart::RunnerPtr ProgramPart::take(const RunLimits& limits) {
    RunnerPtr found = taken();
    found->instance.limit(std::numeric_limits<std::size_t>::max(), limits.iterations, limits.deadline);
    return found;
}

ProgramPart::RunnerPtr ProgramPart::taken() {
    {
        const std::lock_guard lock(mutex_);
        if (!idle_.empty()) {
            RunnerPtr found = std::move(idle_.back());
            idle_.pop_back();
            return found;
        }
    }
    auto made = std::make_unique<Runner>(program_);
    for (const auto& [external, address] : constants_) {
        made->instance.set_external(external, const_cast<char*>(address));  // steps write only to outputs
    }
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
        Dims shape{0};
        shape.insert(shape.end(), buffers_[i].row.begin(), buffers_[i].row.end());
        made->instance.set_buffer(first_buffer_ + static_cast<int>(i), nullptr, std::move(shape));
    }
    return made;
}

void ProgramPart::give(RunnerPtr runner) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(runner));
}

void ProgramPart::run_together(const std::vector<std::byte*>& ports, std::int64_t runs, const RunLimits& limits) {
    std::vector<RunnerPtr> runners;
    std::vector<Instance*> instances;
    for (int i = 0; i < program_.threads(); ++i) {
        runners.push_back(take(limits));
        instances.push_back(&runners.back()->instance);
    }
    std::vector<PartArray> arrays;
    for (std::size_t i = 0; i < ports.size(); ++i) {
        arrays.push_back(
            {static_cast<int>(i), ports[i] + slices_[i].offset, static_cast<std::int64_t>(slices_[i].stride)});
    }
    run_parts(instances, arrays, runs, [] {});
    for (RunnerPtr& runner : runners) {
        give(std::move(runner));
    }
}

void ProgramPart::run(const std::vector<std::byte*>& ports, const RunLimits& limits) {
    // As many runs as threads at the same time, then the others one after the other, each on all threads.
    const std::int64_t threads = program_.threads();
    const std::int64_t together = threads > 1 ? runs_ / threads * threads : 0;
    if (together > 0) {
        run_together(ports, together, limits);
    }
    if (together == runs_) {
        return;
    }
    RunnerPtr runner = take(limits);
    runner->instance.begin_parts();
    for (std::int64_t i = together; i < runs_; ++i) {
        for (std::size_t port = 0; port < ports.size(); ++port) {
            const SavedSlice& slice = slices_[port];
            runner->instance.set_external(static_cast<int>(port),
                                          ports[port] + slice.offset + slice.stride * static_cast<std::uint64_t>(i));
        }
        runner->instance.run_part([](std::size_t) {}, [] {});
    }
    give(std::move(runner));
}

}  // namespace graphkit
