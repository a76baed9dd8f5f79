#include "program.h"

#include <cstring>
#include <new>

#include "threads.h"

namespace graphkit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPollInterval = std::chrono::milliseconds(50);

// What one late kernel keeps; a program whose shapes never come back starts again from nothing.
constexpr std::size_t kPreparedLimit = 4096;

std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

void copy_bytes(void* to, const void* from, std::size_t bytes) {
    if (to != from && bytes != 0) {
        std::memcpy(to, from, bytes);
    }
}

std::size_t bytes_of(const Dims& shape, std::size_t item) {
    return static_cast<std::size_t>(count(shape)) * item;
}

// Without the first axis.
std::size_t row_bytes(const Dims& shape, std::size_t item) {
    std::size_t bytes = item;
    for (std::size_t axis = 1; axis < shape.size(); ++axis) {
        bytes *= static_cast<std::size_t>(shape[axis]);
    }
    return bytes;
}

void* at(void* start, std::int64_t offset) {
    return static_cast<std::byte*>(start) + offset;
}

}  // namespace

std::size_t Program::entry(const Place& place) {
    use_external(place.external);
    places_.push_back(place);
    return places_.size() - 1;
}

std::size_t Program::entries(const std::vector<Place>& places) {
    const std::size_t first = places_.size();
    for (const Place& place : places) {
        entry(place);
    }
    return first;
}

void Buffer::Free::operator()(std::byte* memory) const {
    ::operator delete(memory, std::align_val_t{kAlignment});
}

void Buffer::reserve(std::size_t bytes, std::size_t kept) {
    if (data_ != nullptr && bytes <= capacity_) {
        return;
    }
    const std::size_t capacity = std::max(std::max(bytes, 2 * capacity_), kAlignment);
    void* const memory = ::operator new(capacity, std::align_val_t{kAlignment}, std::nothrow);
    if (memory == nullptr) {
        throw NativeError("no memory for " + std::to_string(capacity) + " bytes");
    }
    std::unique_ptr<std::byte, Free> grown(static_cast<std::byte*>(memory));
    copy_bytes(grown.get(), data_.get(), std::min(kept, capacity_));
    data_ = std::move(grown);
    capacity_ = capacity;
}

Instance::Instance(const Program& program, std::byte* arena)
    : program_(program),
      table_(program.places().size(), nullptr),
      memory_(static_cast<std::size_t>(program.externals())),
      known_(program.late()) {
    for (std::size_t i = 0; i < table_.size(); ++i) {
        const Place& place = program.places()[i];
        if (place.external == Place::kArena) {
            table_[i] = arena + place.offset;
        } else if (place.external >= 0) {
            memory(place.external).patches.push_back({i, place.offset});
        }
    }
}

void Instance::patch(const Memory& memory) {
    for (const Patch& patch : memory.patches) {
        table_[patch.entry] = memory.data == nullptr ? nullptr : at(memory.data, patch.offset);
    }
}

void Instance::set_external(int external, void* data) {
    Memory& target = memory(external);
    if (target.data != data) {
        target.data = data;
        patch(target);
    }
}

void Instance::lend(int slot, void* data, Dims shape) {
    set_external(slot, data);
    memory(slot).shape = std::move(shape);
}

void Instance::grow(int slot, std::size_t bytes, std::size_t kept) {
    Memory& target = memory(slot);
    target.buffer.reserve(bytes, kept);
    set_external(slot, target.buffer.data());
}

void Instance::resize(int slot, const Dims& shape, std::size_t item) {
    memory(slot).shape = shape;
    grow(slot, bytes_of(shape, item), 0);
}

void Instance::store(int target, const void* source, const Dims& shape, std::size_t item) {
    resize(target, shape, item);
    copy_bytes(memory(target).data, source, bytes_of(shape, item));
}

void Instance::run(const Call& call, const std::function<void()>& poll) {
    call_ = &call;
    poll_ = &poll;
    polled_ = Clock::now();
    const Team team(program_.threads());
    run_region(program_.root());
}

void Instance::run_region(const Region& region) {
    for (const Step& step : region.steps) {
        if (tracing_) [[unlikely]] {
            const std::int64_t start = now();
            run_step(region, step);
            events_.push_back({&step, start, now()});
        } else {
            run_step(region, step);
        }
    }
}

void Instance::run_step(const Region& region, const Step& step) {
    switch (step.kind) {
        case Step::Kind::kernel:
            run_kernel(*step.kernel, step.inputs, step.outputs, table_[step.scratch], step.name);
            break;
        case Step::Kind::late:
            run_late(region.late[step.index], step.name);
            break;
        case Step::Kind::copy:
            copy_bytes(table_[step.outputs], table_[step.inputs], step.bytes);
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
            (*call_)(step.index);
            break;
        case Step::Kind::branch:
            run_region(*region.branches[step.index].taken[read_bool(step.inputs) ? 1 : 0]);
            break;
        case Step::Kind::loop:
            run_loop(region.loops[step.index]);
            break;
        case Step::Kind::fail:
            throw NativeError(step.name);
    }
}

void Instance::run_kernel(const Kernel& kernel, std::size_t inputs, std::size_t outputs, void* scratch,
                          const std::string& name) {
    try {
        kernel.run(&table_[inputs], &table_[outputs], static_cast<std::byte*>(scratch));
    } catch (const NativeError& error) {
        throw NativeError(name + ": " + error.what());
    }
}

void Instance::copy_row(const Step& step) {
    const Memory& slot = memory(step.source);
    const std::int64_t size = slot.shape[0];
    const std::int64_t index = step.wide ? *static_cast<const std::int64_t*>(table_[step.inputs])
                                         : *static_cast<const std::int32_t*>(table_[step.inputs]);
    if (index < -size || index >= size) {
        throw NativeError(step.name + ": index " + std::to_string(index) + " is outside of an axis of size " +
                          std::to_string(size));
    }
    const std::size_t bytes = row_bytes(slot.shape, step.bytes);
    const std::int64_t place = index < 0 ? index + size : index;
    copy_bytes(table_[step.outputs], at(slot.data, place * static_cast<std::int64_t>(bytes)), bytes);
}

const Prepared& Instance::prepared(const Late& late) {
    key_.clear();
    for (const Late::Operand& operand : late.inputs) {
        const Memory* const slot = operand.slot < 0 ? nullptr : &memory(operand.slot);
        if (slot != nullptr) {
            key_.push_back(static_cast<std::int64_t>(slot->shape.size()));
            key_.insert(key_.end(), slot->shape.begin(), slot->shape.end());
        }
        if (operand.by_value) {
            const std::size_t entry = late.first_input + static_cast<std::size_t>(&operand - late.inputs.data());
            const std::int64_t elements = slot != nullptr ? count(slot->shape) : operand.elements;
            for (std::int64_t i = 0; i < elements; ++i) {
                key_.push_back(operand.item == sizeof(std::int32_t)
                                   ? static_cast<const std::int32_t*>(table_[entry])[i]
                                   : static_cast<const std::int64_t*>(table_[entry])[i]);
            }
        }
    }
    Known& known = known_[late.number];
    if (known.latest != nullptr && *known.latest_key == key_) {
        return *known.latest;
    }
    auto found = known.found.find(key_);
    if (found == known.found.end()) {
        Late::Shapes shapes;
        Late::Shapes values;
        for (std::size_t i = 0; i < late.inputs.size(); ++i) {
            const Late::Operand& operand = late.inputs[i];
            shapes.emplace_back();
            values.emplace_back();
            if (operand.slot >= 0) {
                shapes.back() = memory(operand.slot).shape;
            }
            if (operand.by_value) {
                const std::int64_t elements = operand.slot >= 0 ? count(*shapes.back()) : operand.elements;
                Dims& value = values.back().emplace();
                for (std::int64_t k = 0; k < elements; ++k) {
                    value.push_back(operand.item == sizeof(std::int32_t)
                                        ? static_cast<const std::int32_t*>(table_[late.first_input + i])[k]
                                        : static_cast<const std::int64_t*>(table_[late.first_input + i])[k]);
                }
            }
        }
        if (known.found.size() >= kPreparedLimit) {
            known.latest = nullptr;
            known.found.clear();
        }
        found = known.found.emplace(key_, late.make(shapes, values)).first;
    }
    known.latest_key = &found->first;
    known.latest = found->second.get();
    return *known.latest;
}

void Instance::run_late(const Late& late, const std::string& name) {
    const Prepared& chosen = prepared(late);
    if (chosen.call) {
        call_late(late, chosen, name);
        return;
    }
    for (std::size_t i = 0; i < late.outputs.size(); ++i) {
        if (late.outputs[i].slot >= 0) {
            resize(late.outputs[i].slot, chosen.shapes[i], late.outputs[i].item);
        }
    }
    for (const auto& [input, output] : chosen.views) {
        copy_bytes(table_[late.first_output + output], table_[late.first_input + input],
                   bytes_of(chosen.shapes[output], late.outputs[output].item));
    }
    for (const auto& [output, bytes] : chosen.known) {
        copy_bytes(table_[late.first_output + output], bytes.data(), bytes.size());
    }
    if (chosen.kernel != nullptr) {
        scratch_.reserve(chosen.scratch_bytes, 0);
        run_kernel(*chosen.kernel, late.first_input, late.first_output, scratch_.data(), name);
    }
}

void Instance::call_late(const Late& late, const Prepared& chosen, const std::string& name) {
    std::vector<std::size_t> bytes;
    for (const Late::Operand& operand : late.inputs) {
        const std::int64_t elements = operand.slot < 0 ? operand.elements : count(shape_of(operand.slot));
        bytes.push_back(static_cast<std::size_t>(elements) * operand.item);
    }
    chosen.call(&table_[late.first_input], bytes,
                [&](std::size_t output, const void* data, const Dims& shape, std::size_t size) {
                    const Late::Operand& target = late.outputs[output];
                    if (target.slot >= 0) {
                        store(target.slot, data, shape, target.item);
                    } else if (size != static_cast<std::size_t>(target.elements) * target.item) {
                        throw NativeError(name + ": result " + std::to_string(output) + " has the shape " +
                                          to_string(shape) + ", which is not what was inferred");
                    } else if (void* const place = table_[late.first_output + output]; place != nullptr) {
                        copy_bytes(place, data, size);
                    }
                });
}

void Instance::poll() {
    if (const auto time = Clock::now(); time - polled_ > kPollInterval) {
        (*poll_)();
        polled_ = time;
    }
}

void Instance::run_loop(const Loop& loop) {
    const std::int64_t trips = start_loop(loop);
    bool go_on = loop.condition == Loop::kNone || read_bool(loop.condition);
    std::int64_t done = 0;
    while (go_on && (trips < 0 || done < trips)) {
        start_iteration(loop, done, trips);
        run_region(*loop.body);
        end_iteration(loop, done, trips);
        ++done;
        if (loop.condition_after != Loop::kNone) {
            go_on = read_bool(loop.condition_after);
        }
        poll();
    }
    end_loop(loop, done);
}

// How often at most, -1 when nothing says it.
std::int64_t Instance::start_loop(const Loop& loop) {
    std::int64_t trips = loop.trips;
    if (loop.trip_count != Loop::kNone) {
        trips = std::max(*static_cast<const std::int64_t*>(table_[loop.trip_count]), std::int64_t{0});
    }
    for (const Loop::Slice& slice : loop.slices) {
        if (slice.slot >= 0) {
            const Dims& whole = memory(slice.slot).shape;
            if (trips >= 0 && trips != whole[0]) {
                throw NativeError("the scan inputs have lengths " + std::to_string(trips) + " and " +
                                  std::to_string(whole[0]));
            }
            trips = whole[0];
            memory(slice.external).shape.assign(whole.begin() + 1, whole.end());
        }
    }
    if (loop.condition_before != Loop::kNone) {
        constexpr bool yes = true;  // or no iteration starts
        std::memcpy(table_[loop.condition_before], &yes, sizeof(yes));
    }
    for (const Loop::Varying& value : loop.varying) {
        set_external(value.before, table_[value.initial]);
        memory(value.before).shape = value.slot < 0 ? value.dims : memory(value.slot).shape;
    }
    return trips;
}

void Instance::start_iteration(const Loop& loop, std::int64_t iteration, std::int64_t trips) {
    if (loop.iteration != Loop::kNone) {
        std::memcpy(table_[loop.iteration], &iteration, sizeof(iteration));
    }
    for (const Loop::Slice& slice : loop.slices) {
        const std::int64_t place = slice.backwards ? trips - 1 - iteration : iteration;
        const std::int64_t stride =
            slice.slot < 0 ? slice.stride
                           : static_cast<std::int64_t>(row_bytes(memory(slice.slot).shape, slice.item));
        set_external(slice.external, at(table_[slice.whole], place * stride));
    }
    for (const Loop::Stack& stack : loop.stacks) {
        if (stack.fixed_row) {
            const std::size_t row = bytes_of(stack.dims, stack.item);
            const auto done = static_cast<std::size_t>(iteration);
            const std::int64_t place = stack.backwards ? trips - 1 - iteration : iteration;
            grow(stack.whole, static_cast<std::size_t>(stack.backwards ? trips : iteration + 1) * row,
                 stack.backwards ? static_cast<std::size_t>(trips) * row : done * row);
            set_external(stack.row, at(memory(stack.whole).data, place * static_cast<std::int64_t>(row)));
        }
    }
    for (const Loop::Carried& value : loop.carried) {
        if (value.where == Loop::Carried::Where::buffers) {
            set_external(value.after, table_[value.buffers[iteration & 1]]);
        }
        set_external(value.before, iteration == 0 ? table_[value.initial] : latest(value, iteration));
    }
}

// What the iteration before this one wrote, where the row of this one is set already.
void* Instance::latest(const Loop::Carried& value, std::int64_t iteration) const {
    const auto bytes = static_cast<std::int64_t>(value.bytes);
    void* const row = memory_[static_cast<std::size_t>(value.after)].data;
    switch (value.where) {
        case Loop::Carried::Where::buffers:
            return table_[value.buffers[(iteration - 1) & 1]];
        case Loop::Carried::Where::row:
            return at(row, -bytes);
        case Loop::Carried::Where::row_from_end:
            return at(row, bytes);
    }
    return nullptr;
}

void Instance::end_iteration(const Loop& loop, std::int64_t iteration, std::int64_t trips) {
    for (const Loop::Stack& stack : loop.stacks) {
        if (stack.fixed_row) {
            continue;
        }
        const Dims& shape = memory(stack.row).shape;
        Dims& whole = memory(stack.whole).shape;
        if (iteration == 0) {
            whole.assign(1, 0);
            whole.insert(whole.end(), shape.begin(), shape.end());
        } else if (!std::equal(shape.begin(), shape.end(), whole.begin() + 1, whole.end())) {
            throw NativeError("a scan output changes its shape between iterations: from " +
                              to_string(Dims(whole.begin() + 1, whole.end())) + " to " + to_string(shape));
        }
        const std::size_t row = bytes_of(shape, stack.item);
        const std::int64_t place = stack.backwards ? trips - 1 - iteration : iteration;
        const auto rows = static_cast<std::size_t>(stack.backwards ? trips : iteration + 1);
        grow(stack.whole, rows * row, stack.backwards ? rows * row : static_cast<std::size_t>(iteration) * row);
        copy_bytes(at(memory(stack.whole).data, place * static_cast<std::int64_t>(row)), memory(stack.row).data, row);
    }
    for (const Loop::Varying& value : loop.varying) {
        Memory& before = memory(value.before);
        Memory& after = memory(value.after);
        std::swap(before.data, after.data);
        std::swap(before.shape, after.shape);
        std::swap(before.buffer, after.buffer);
        patch(before);
        patch(after);
    }
}

void Instance::end_loop(const Loop& loop, std::int64_t done) {
    for (const Loop::Carried& value : loop.carried) {
        if (value.final != Loop::kNone) {
            const void* const last = done == 0                                       ? table_[value.initial]
                                     : value.where == Loop::Carried::Where::buffers ? latest(value, done)
                                                                                    : memory(value.after).data;
            copy_bytes(table_[value.final], last, value.bytes);
        }
    }
    for (const Loop::Varying& value : loop.varying) {
        if (value.final >= 0) {
            store(value.final, memory(value.before).data, memory(value.before).shape, value.item);
        }
    }
    for (std::size_t i = 0; i < loop.stacks.size(); ++i) {
        const Loop::Stack& stack = loop.stacks[i];
        Dims& whole = memory(stack.whole).shape;
        if (stack.fixed_row || done == 0) {
            const Dims& row = stack.fixed_row ? stack.dims : prepared(*loop.empty).shapes[i];
            whole.assign(1, done);
            whole.insert(whole.end(), row.begin(), row.end());
        }
        whole[0] = done;
        grow(stack.whole, 0, 0);
    }
}

}  // namespace graphkit
