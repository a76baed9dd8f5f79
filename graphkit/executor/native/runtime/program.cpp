#include "runtime/program.h"

#include <chrono>
#include <limits>
#include <new>
#include <numeric>
#include <stdexcept>

#include "runtime/bytes.h"
#include "runtime/not_finite.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

using Clock = std::chrono::steady_clock;

// A counter that is read in a few nanoseconds, negligible for steps of a microsecond. kPollTicks is 30 to 100
// milliseconds, depending on the frequency of the processor's counter.
#if defined(__x86_64__)
std::uint64_t ticks() {
    return __builtin_ia32_rdtsc();
}
constexpr std::uint64_t kPollTicks = 100'000'000;
#else
std::uint64_t ticks() {
    return static_cast<std::uint64_t>(Clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}
constexpr std::uint64_t kPollTicks = 50'000'000;
#endif

std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

}  // namespace

Program::Program(int threads, std::size_t arena_bytes, int externals)
    : threads_(threads), arena_bytes_(arena_bytes), code_(std::make_shared<Code>()) {
    code_->externals = externals;
}

Program::Program(const Program& other, std::vector<const Kernel*> kernels, std::vector<std::int64_t> offsets,
                 std::size_t arena_bytes, std::vector<std::int64_t> sizes)
    : threads_(other.threads_),
      arena_bytes_(arena_bytes),
      code_(other.code_),
      kernels_(std::move(kernels)),
      offsets_(std::move(offsets)),
      sizes_(std::move(sizes)) {
    if (!code_->complete || !code_->is_sized || other.kernels_.size() != kernels_.size()) {
        throw NativeError(
            "only the kernels of a complete program can be changed, and all of its sizes must be known before a run");
    }
}

bool Block::is_sized() const {
    for (const Step& step : steps) {
        switch (step.kind) {
            case Step::Kind::kernel:
            case Step::Kind::copy:
            case Step::Kind::branch:
            case Step::Kind::loop:
            case Step::Kind::commit:
                break;
            default:
                return false;
        }
    }
    for (const Branch& branch : branches) {
        if (!branch.taken[0]->is_sized() || !branch.taken[1]->is_sized()) {
            return false;
        }
    }
    return std::all_of(loops.begin(), loops.end(), [](const Loop& loop) {
        const auto has_buffer = [](const Loop::Slice& slice) { return slice.buffer >= 0; };
        return loop.dynamic_states.empty() && loop.stacks.empty() && loop.empty == nullptr &&
               std::none_of(loop.slices.begin(), loop.slices.end(), has_buffer) && loop.body->is_sized();
    });
}

bool Block::has_only_kernels() const {
    return std::all_of(steps.begin(), steps.end(), [](const Step& step) { return step.kind == Step::Kind::kernel; });
}

void Program::use_external(int external) {
    if (code_->complete) {
        throw NativeError("the program is complete: it has instances");
    }
    code_->externals = std::max(code_->externals, external + 1);
}

std::size_t Program::entry(const Location& location) {
    use_external(location.external);
    code_->locations.push_back(location);
    return code_->locations.size() - 1;
}

std::size_t Program::entries(const std::vector<Location>& locations) {
    const std::size_t first = code_->locations.size();
    for (const Location& location : locations) {
        entry(location);
    }
    return first;
}

void Program::complete() {
    Code& code = *code_;
    if (code.complete) {
        return;
    }
    code.complete = true;
    code.is_sized = code.root.is_sized();
    code.has_sizes = !code.root.has_only_kernels();
    code.first.assign(static_cast<std::size_t>(code.externals) + 1, 0);
    for (const Location& location : code.locations) {
        if (location.external >= 0) {
            ++code.first[static_cast<std::size_t>(location.external) + 1];
        }
    }
    std::partial_sum(code.first.begin(), code.first.end(), code.first.begin());
    code.entries.resize(code.first.back());
    std::vector<std::uint32_t> next = code.first;
    for (std::size_t i = 0; i < code.locations.size(); ++i) {
        if (code.locations[i].external >= 0) {
            code.entries[next[static_cast<std::size_t>(code.locations[i].external)]++] = static_cast<std::uint32_t>(i);
        }
    }
}

void Program::add_kernel(Block& block, Step step, const Kernel& kernel) {
    if (step.input_entries < kernel.inputs().size() || step.output_entries < kernel.outputs().size()) {
        throw NativeError(step.name + ": " + kernel.describe() + " got too few operands");
    }
    const auto require = [&](const std::vector<TensorSpec>& specs, std::size_t first) {
        for (std::size_t i = 0; i < specs.size(); ++i) {
            if (!specs[i].optional && code_->locations[first + i].external == Location::kAbsent) {
                throw NativeError(step.name + ": " + kernel.describe() + " got no memory for '" + specs[i].name + "'");
            }
        }
    };
    require(kernel.inputs(), step.inputs);
    require(kernel.outputs(), step.outputs);
    step.index = kernels_.size();
    kernels_.push_back(&kernel);
    block.steps.push_back(std::move(step));
}

void Program::point_to_arena(std::byte* arena, std::vector<void*>& table) const {
    for (std::size_t i = 0; i < table.size(); ++i) {
        const Location& location = code_->locations[i];
        if (location.external == Location::kArena) {
            const std::int64_t offset =
                offsets_.empty() ? location.offset : offsets_[static_cast<std::size_t>(location.offset)];
            table[i] = arena + offset;
        }
    }
}

void Program::point_to_external(int external, void* data, std::vector<void*>& table) const {
    const auto number = static_cast<std::size_t>(external);
    for (std::uint32_t i = code_->first[number]; i < code_->first[number + 1]; ++i) {
        const std::uint32_t entry = code_->entries[i];
        table[entry] = data == nullptr ? nullptr : at(data, code_->locations[entry].offset);
    }
}

void Buffer::Free::operator()(std::byte* memory) const {
    ::operator delete(memory, std::align_val_t{kAlignment});
}

void Buffer::reserve(std::size_t bytes, std::size_t kept, Allowance& allowance) {
    if (data_ != nullptr && bytes <= capacity_) {
        return;
    }
    // While the buffer grows, the old and the new memory exist at the same time.
    const std::size_t left = allowance.most - std::min(allowance.taken, allowance.most);
    constexpr auto kMost = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());  // of operator new
    if (bytes > left || bytes > kMost) {
        throw NoRoom(bytes);
    }
    const std::size_t capacity = std::max({bytes, std::min(2 * capacity_, left), kAlignment});
    void* const memory = ::operator new(capacity, std::align_val_t{kAlignment}, std::nothrow);
    if (memory == nullptr) {
        throw NoRoom(bytes);
    }
    std::unique_ptr<std::byte, Free> grown(static_cast<std::byte*>(memory));
    copy_bytes(grown.get(), data_.get(), std::min(kept, capacity_));
    data_ = std::move(grown);
    allowance.taken += capacity - capacity_;
    capacity_ = capacity;
}

Instance::Instance(const Program& program)
    : program_(&program),
      table_(program.entry_count(), nullptr),
      memory_(static_cast<std::size_t>(program.externals())),
      known_(program.dynamic()) {}

void Instance::move(std::byte* arena) {
    if (arena != arena_) {
        arena_ = arena;
        program_->point_to_arena(arena, table_);
    }
}

void Instance::set_external(int external, void* data) {
    Memory& target = memory(external);
    if (target.data != data) {
        target.data = data;
        patch(external);
    }
}

void Instance::set_buffer(int buffer, void* data, Dims shape) {
    set_external(buffer, data);
    memory(buffer).shape = std::move(shape);
}

void Instance::grow(int buffer, std::size_t bytes, std::size_t kept) {
    Memory& target = memory(buffer);
    target.owned.reserve(bytes, kept, allowance_);
    set_external(buffer, target.owned.data());
}

void Instance::resize(int buffer, const Dims& shape, std::size_t item) {
    Memory& target = memory(buffer);
    target.shape = shape;
    const std::size_t bytes = bytes_of(shape, item);
    if (target.lent == nullptr || bytes > target.lent_bytes) {
        grow(buffer, bytes, 0);
        return;
    }
    // The buffer's own memory is not used, so it does not count.
    const std::size_t others = allowance_.taken - target.owned.capacity() + allowance_.lent - target.used_of_lent;
    if (bytes > allowance_.most - std::min(others, allowance_.most)) {
        throw NoRoom(bytes);
    }
    allowance_.lent += bytes - target.used_of_lent;
    target.used_of_lent = bytes;
    set_external(buffer, target.lent);
}

void Instance::lend(int buffer, void* data, std::size_t bytes) {
    Memory& target = memory(buffer);
    allowance_.lent -= std::exchange(target.used_of_lent, 0);  // of a run that failed
    target.lent = data;
    target.lent_bytes = bytes;
}

bool Instance::take_back(int buffer) {
    Memory& target = memory(buffer);
    allowance_.lent -= std::exchange(target.used_of_lent, 0);
    return std::exchange(target.lent, nullptr) == target.data;
}

void Instance::store(int target, const void* source, const Dims& shape, std::size_t item) {
    resize(target, shape, item);
    copy_bytes(memory(target).data, source, bytes_of(shape, item));
}

void Instance::run(const Call& call, const std::function<void()>& poll) {
    begin_parts();
    run_part(call, poll);
}

void Instance::begin_parts() {
    polled_ = ticks();
}

void Instance::run_part(const Call& call, const std::function<void()>& poll) {
    call_ = &call;
    poll_ = &poll;
    committed_ = false;
    const Team team(program_->threads());
    run_block(program_->root());
}

void Instance::run_timed_part(const Call& call, const std::function<void()>& poll) {
    const std::int64_t start = now();
    run_part(call, poll);
    part_nanoseconds_ = now() - start;
}

void Instance::run_block(const Block& block) {
    for (const Step& step : block.steps) {
        if (tracing_) [[unlikely]] {
            const std::int64_t start = now();
            run_step(block, step);
            events_.push_back({&step, start, now()});
        } else {
            run_step(block, step);
        }
        poll(step.name);
    }
}

void Instance::run_step(const Block& block, const Step& step) {
    try {
        carry_out(block, step);
    } catch (const NoRoom& error) {
        const bool counted = error.bytes < std::numeric_limits<std::size_t>::max();
        throw NoMemory(step.name + ": no memory for " +
                       (counted ? std::to_string(error.bytes) + " bytes" : "more bytes than can be counted"));
    } catch (const std::bad_alloc&) {
        throw NoMemory(step.name + ": no memory for the working memory of the step");
    } catch (const std::length_error&) {
        throw NoMemory(step.name + ": no memory for the working memory of the step");
    }
}

void Instance::carry_out(const Block& block, const Step& step) {
    switch (step.kind) {
        case Step::Kind::kernel:
            run_kernel(program_->kernel(step), step.inputs, step.outputs, table_[step.scratch], step.name);
            break;
        case Step::Kind::dynamic:
            run_dynamic(block.dynamic[step.index], step.name);
            break;
        case Step::Kind::data_dependent:
            run_data_dependent(block.data_dependent[step.index], step.name);
            break;
        case Step::Kind::copy:
            copy_bytes(table_[step.outputs], table_[step.inputs],
                       static_cast<std::size_t>(program_->size(static_cast<std::int64_t>(step.bytes))));
            break;
        case Step::Kind::store:
            store(step.target, memory(step.source).data, memory(step.source).shape, step.bytes);
            break;
        case Step::Kind::resize:
            resize(step.target, step.dims, step.bytes);
            break;
        case Step::Kind::sizes: {
            const Dims& shape = memory(step.source).shape;
            std::memcpy(table_[step.outputs], shape.data() + step.dims[0],
                        static_cast<std::size_t>(step.dims[1] - step.dims[0]) * sizeof(std::int64_t));
            break;
        }
        case Step::Kind::row:
            copy_row(step);
            break;
        case Step::Kind::call:
            leave_helpers();
            (*call_)(step.index);
            break;
        case Step::Kind::branch:
            run_block(*block.branches[step.index].taken[read_bool(step.inputs) ? 1 : 0]);
            break;
        case Step::Kind::loop:
            run_loop(block.loops[step.index], step.name);
            break;
        case Step::Kind::commit:
            committed_ = true;
            break;
        case Step::Kind::fail:
            throw NativeError(step.name);
    }
}

void Instance::run_kernel(const Kernel& kernel, std::size_t inputs, std::size_t outputs, void* scratch,
                          const std::string& name) {
    try {
        kernel.run(&table_[inputs], &table_[outputs], static_cast<std::byte*>(scratch));
    } catch (const NotFinite& error) {
        throw NotFinite(name + ": " + error.what());
    } catch (const NativeError& error) {
        throw NativeError(name + ": " + error.what());
    }
}

void Instance::copy_row(const Step& step) {
    const Memory& buffer = memory(step.source);
    const std::int64_t size = buffer.shape[0];
    const std::int64_t index = step.wide ? *static_cast<const std::int64_t*>(table_[step.inputs])
                                         : *static_cast<const std::int32_t*>(table_[step.inputs]);
    if (index < -size || index >= size) {
        throw NativeError(step.name + ": index " + std::to_string(index) + " is outside of an axis of size " +
                          std::to_string(size));
    }
    const std::size_t bytes = row_bytes(buffer.shape, step.bytes);
    const std::int64_t place = index < 0 ? index + size : index;
    copy_bytes(table_[step.outputs], at(buffer.data, place * static_cast<std::int64_t>(bytes)), bytes);
}

void Instance::poll(const std::string& name) {
    if (ticks() - polled_ > kPollTicks) [[unlikely]] {
        ask(name);
    }
}

void Instance::ask(const std::string& name) {
    if (!committed_) {
        (*poll_)();
        if (now() > deadline_) {
            throw LimitReached(name + ": the time limit is over", "timeout", "--timeout, GRAPHKIT_TIMEOUT");
        }
    }
    polled_ = ticks();
}

void Instance::limit(std::size_t memory, std::int64_t iterations, std::int64_t deadline) {
    allowance_.most = memory;
    most_iterations_ = iterations;
    deadline_ = deadline;
}

}  // namespace graphkit
