#include "program.h"

#include <cstring>

#include "threads.h"

namespace graphkit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPollInterval = std::chrono::milliseconds(50);

std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

void move(void* to, const void* from, std::size_t bytes) {
    if (to != from) {
        std::memcpy(to, from, bytes);
    }
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

Instance::Instance(const Program& program, std::byte* arena)
    : program_(program),
      table_(program.places().size(), nullptr),
      patches_(static_cast<std::size_t>(program.externals())),
      current_(static_cast<std::size_t>(program.externals()), nullptr) {
    for (std::size_t i = 0; i < table_.size(); ++i) {
        const Place& place = program.places()[i];
        if (place.external == Place::kArena) {
            table_[i] = arena + place.offset;
        } else if (place.external >= 0) {
            patches_[static_cast<std::size_t>(place.external)].push_back({i, place.offset});
        }
    }
}

void Instance::set_external(int external, void* memory) {
    const auto index = static_cast<std::size_t>(external);
    if (current_[index] == memory) {
        return;
    }
    current_[index] = memory;
    for (const Patch& patch : patches_[index]) {
        table_[patch.entry] = memory == nullptr ? nullptr : static_cast<std::byte*>(memory) + patch.offset;
    }
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
            try {
                step.kernel->run(&table_[step.inputs], &table_[step.outputs],
                                 static_cast<std::byte*>(table_[step.scratch]));
            } catch (const NativeError& error) {
                throw NativeError(step.name + ": " + error.what());
            }
            break;
        case Step::Kind::copy:
            move(table_[step.outputs], table_[step.inputs], step.bytes);
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

void Instance::run_loop(const Loop& loop) {
    std::int64_t trips = loop.trips;
    if (loop.trip_count != Loop::kNone) {
        trips = std::max<std::int64_t>(*static_cast<const std::int64_t*>(table_[loop.trip_count]), 0);
    }
    for (const Loop::Carried& carried : loop.carried) {
        move(table_[carried.before], table_[carried.initial], carried.bytes);
    }
    bool go_on = loop.condition == Loop::kNone || read_bool(loop.condition);
    for (std::int64_t i = 0; go_on && (trips < 0 || i < trips); ++i) {
        if (loop.iteration != Loop::kNone) {
            std::memcpy(table_[loop.iteration], &i, sizeof(i));
        }
        if (loop.condition_before != Loop::kNone) {
            std::memcpy(table_[loop.condition_before], &go_on, sizeof(go_on));
        }
        for (const Loop::Slice& slice : loop.slices) {
            const std::int64_t at = slice.backwards ? trips - 1 - i : i;
            set_external(slice.external, static_cast<std::byte*>(table_[slice.whole]) + at * slice.stride);
        }
        run_region(*loop.body);
        if (loop.condition_after != Loop::kNone) {
            go_on = read_bool(loop.condition_after);
        }
        for (const Loop::Carried& carried : loop.carried) {
            move(table_[carried.before], table_[carried.after], carried.bytes);
        }
        if (const auto time = Clock::now(); time - polled_ > kPollInterval) {
            (*poll_)();
            polled_ = time;
        }
    }
    for (const Loop::Carried& carried : loop.carried) {
        if (carried.final != Loop::kNone) {
            move(table_[carried.final], table_[carried.before], carried.bytes);
        }
    }
}

}  // namespace graphkit
