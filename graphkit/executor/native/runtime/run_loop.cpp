// Loop and Scan: what happens before, between and after the iterations.
#include "runtime/bytes.h"
#include "runtime/program.h"

namespace graphkit {
namespace {

// Returns the bytes of a stack. Throws NoRoom if they do not fit into std::size_t.
std::size_t stacked_bytes(std::int64_t rows, std::size_t row) {
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(static_cast<std::size_t>(rows), row, &bytes)) {
        throw NoRoom(std::numeric_limits<std::size_t>::max());
    }
    return bytes;
}

}  // namespace

void Instance::run_loop(const Loop& loop, const std::string& name) {
    const std::int64_t trips = start_loop(loop, name);
    bool go_on = loop.condition == Loop::kNone || read_bool(loop.condition);
    const std::int64_t most = program_->size(loop.trips);
    if (go_on && most >= 0 && trips > most) {  // rows of slices would be outside of their memory
        throw NativeError(name + ": the trip count is " + std::to_string(trips) + ", but at most " +
                          std::to_string(most) + " iterations were expected");
    }
    std::int64_t done = 0;
    while (go_on && (trips < 0 || done < trips)) {
        if (done >= most_iterations_ && !committed_) [[unlikely]] {
            throw LimitReached(name + ": more than " + std::to_string(most_iterations_) + " iterations",
                               "max_iterations", "--max-iterations, GRAPHKIT_MAX_ITERATIONS");
        }
        start_iteration(loop, done, trips);
        run_block(*loop.body);
        end_iteration(loop, done, trips, name);
        ++done;
        if (loop.condition_after != Loop::kNone) {
            go_on = read_bool(loop.condition_after);
        }
        poll(name);
    }
    end_loop(loop, done, name);
}

// Prepares a loop. Returns the largest number of iterations, -1 if it is not limited.
std::int64_t Instance::start_loop(const Loop& loop, const std::string& name) {
    std::int64_t trips = program_->size(loop.trips);
    if (loop.trip_count != Loop::kNone) {
        trips = std::max(*static_cast<const std::int64_t*>(table_[loop.trip_count]), std::int64_t{0});
    }
    for (const Loop::Slice& slice : loop.slices) {
        if (slice.buffer >= 0) {
            const Dims& whole = memory(slice.buffer).shape;
            if (trips >= 0 && trips != whole[0]) {
                throw NativeError(name + ": the scan inputs must have one length, but have " + std::to_string(trips) +
                                  " and " + std::to_string(whole[0]));
            }
            trips = whole[0];
            memory(slice.external).shape.assign(whole.begin() + 1, whole.end());
        }
    }
    if (loop.condition_before != Loop::kNone) {
        constexpr bool yes = true;  // the first iteration starts only if the condition is true
        std::memcpy(table_[loop.condition_before], &yes, sizeof(yes));
    }
    for (const Loop::DynamicState& value : loop.dynamic_states) {
        set_external(value.before, table_[value.initial]);
        memory(value.before).shape = value.buffer < 0 ? value.dims : memory(value.buffer).shape;
    }
    return trips;
}

void Instance::start_iteration(const Loop& loop, std::int64_t iteration, std::int64_t trips) {
    if (loop.iteration != Loop::kNone) {
        std::memcpy(table_[loop.iteration], &iteration, sizeof(iteration));
    }
    for (const Loop::Slice& slice : loop.slices) {
        const std::int64_t place = slice.backwards ? trips - 1 - iteration : iteration;
        const std::int64_t stride = slice.buffer < 0
                                        ? program_->size(slice.stride)
                                        : static_cast<std::int64_t>(row_bytes(memory(slice.buffer).shape, slice.item));
        set_external(slice.external, at(table_[slice.whole], place * stride));
    }
    for (const Loop::Stack& stack : loop.stacks) {
        if (stack.fixed_row) {
            const std::size_t row = bytes_of(stack.dims, stack.item);
            const auto done = static_cast<std::size_t>(iteration);
            const std::int64_t place = stack.backwards ? trips - 1 - iteration : iteration;
            const std::size_t whole = stacked_bytes(stack.backwards ? trips : iteration + 1, row);
            grow(stack.whole, whole, stack.backwards ? whole : done * row);
            set_external(stack.row, at(memory(stack.whole).data, place * static_cast<std::int64_t>(row)));
        }
    }
    for (const Loop::State& value : loop.states) {
        if (value.kept == Loop::State::Kept::turns) {
            set_external(value.after, table_[value.turns[iteration & 1]]);
        }
        set_external(value.before, iteration == 0 ? table_[value.initial] : latest(value, iteration));
    }
}

// Returns the value that the previous iteration wrote. `after` already refers to the row of this iteration.
void* Instance::latest(const Loop::State& value, std::int64_t iteration) const {
    const std::int64_t bytes = program_->size(static_cast<std::int64_t>(value.bytes));
    void* const row = memory_[static_cast<std::size_t>(value.after)].data;
    switch (value.kept) {
        case Loop::State::Kept::turns:
            return table_[value.turns[(iteration - 1) & 1]];
        case Loop::State::Kept::row:
            return at(row, -bytes);
        case Loop::State::Kept::row_from_end:
            return at(row, bytes);
    }
    return nullptr;
}

void Instance::end_iteration(const Loop& loop, std::int64_t iteration, std::int64_t trips, const std::string& name) {
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
            throw NativeError(name + ": a scan output changes its shape between iterations: from " +
                              to_string(Dims(whole.begin() + 1, whole.end())) + " to " + to_string(shape));
        }
        const std::size_t row = bytes_of(shape, stack.item);
        const std::int64_t place = stack.backwards ? trips - 1 - iteration : iteration;
        const std::size_t bytes = stacked_bytes(stack.backwards ? trips : iteration + 1, row);
        grow(stack.whole, bytes, stack.backwards ? bytes : static_cast<std::size_t>(iteration) * row);
        copy_bytes(at(memory(stack.whole).data, place * static_cast<std::int64_t>(row)), memory(stack.row).data, row);
    }
    for (const Loop::DynamicState& value : loop.dynamic_states) {
        Memory& before = memory(value.before);
        Memory& after = memory(value.after);
        std::swap(before.data, after.data);
        std::swap(before.shape, after.shape);
        std::swap(before.owned, after.owned);
        patch(value.before);
        patch(value.after);
    }
}

void Instance::end_loop(const Loop& loop, std::int64_t done, const std::string& name) {
    for (const Loop::State& value : loop.states) {
        if (value.final != Loop::kNone) {
            const void* const last = done == 0                                ? table_[value.initial]
                                     : value.kept == Loop::State::Kept::turns ? latest(value, done)
                                                                              : memory(value.after).data;
            copy_bytes(table_[value.final], last,
                       static_cast<std::size_t>(program_->size(static_cast<std::int64_t>(value.bytes))));
        }
    }
    for (const Loop::DynamicState& value : loop.dynamic_states) {
        if (value.final >= 0) {
            store(value.final, memory(value.before).data, memory(value.before).shape, value.item);
        }
    }
    for (std::size_t i = 0; i < loop.stacks.size(); ++i) {
        const Loop::Stack& stack = loop.stacks[i];
        Dims& whole = memory(stack.whole).shape;
        if (stack.fixed_row || done == 0) {
            const Dims& row = stack.fixed_row ? stack.dims : prepared(*loop.empty, name).shapes[i];
            whole.assign(1, done);
            whole.insert(whole.end(), row.begin(), row.end());
        }
        whole[0] = done;
        grow(stack.whole, 0, 0);
    }
}

}  // namespace graphkit
