// Checks of the loops of a saved program.
#include <algorithm>
#include <bit>

#include "c_interface/step_check.h"

namespace graphkit {
namespace {

// Most slices and states of a loop, which are compared with each other.
constexpr std::size_t kMostPieces = 1024;

[[noreturn]] void fail(const SavedStep& step, const std::string& text) {
    throw NativeError(step.name + ": " + text);
}

bool is_absent(const Location& location) {
    return location.external == Location::kAbsent;
}

// Returns the bytes of all rows of a slice. Throws if the number of rows is not known, or if they are too many.
std::size_t whole_bytes(const SavedStep& step, const SavedLoop::Slice& slice) {
    std::size_t bytes = 0;
    if (step.loop->trips < 0 || slice.stride > kMostBytes ||
        __builtin_mul_overflow(static_cast<std::size_t>(step.loop->trips), slice.stride, &bytes)) {
        fail(step, "the number of rows of a slice is out of range");
    }
    return bytes;
}

}  // namespace

int StepCheck::begin_loop(const SavedStep& step) {
    if (!step.loop || step.blocks.size() != 1) {
        fail(step, "a loop needs one block");
    }
    const SavedLoop& loop = *step.loop;
    if (loop.trips < -1 || loop.slices.size() + loop.stacks.size() > kMostPieces || loop.states.size() > kMostPieces) {
        fail(step, "the sizes of the loop are out of range");
    }
    loop_values(step);
    std::vector<External> body;
    for (const SavedLoop::Slice& given : loop.slices) {
        body.push_back(is_buffer(given.whole) ? read_buffer(step, given) : slice(step, given));
    }
    for (const SavedLoop::Stack& given : loop.stacks) {
        body.push_back(stack(step, given));
    }
    for (const SavedLoop::State& given : loop.states) {
        body.push_back(state_before(step, given));
        if (!given.row) {
            body.push_back(state_after(given));
        }
    }
    loop_apart(step);
    const auto first = static_cast<int>(externals_.size());
    ++level_;
    for (External& made : body) {
        made.known = true;
        made.level = level_;
        externals_.push_back(std::move(made));
    }
    return first;
}

void StepCheck::end_loop(const SavedStep& step, int first) {
    --level_;
    for (const SavedLoop::Slice& given : step.loop->slices) {
        if (is_buffer(given.whole)) {
            --rows(given.whole).readers;
        }
    }
    for (const SavedLoop::Stack& given : step.loop->stacks) {
        rows(given.whole).written = false;
    }
    for (auto i = static_cast<std::size_t>(first); i < externals_.size(); ++i) {
        externals_[i] = {};
    }
}

// Checks the numbers and flags that the loop itself reads and writes.
void StepCheck::loop_values(const SavedStep& step) const {
    const SavedLoop& loop = *step.loop;
    constexpr std::size_t kNumber = sizeof(std::int64_t);
    inside(step, {loop.trip_count, kNumber, "the trip count"}, kNumber, false);
    inside(step, {loop.condition, 1, "the condition"}, 1, false);
    inside(step, {loop.iteration, kNumber, "the iteration number"}, kNumber, true);
    inside(step, {loop.condition_before, 1, "the condition of the body"}, 1, true);
    inside(step, {loop.condition_after, 1, "the new condition"}, 1, false);
}

StepCheck::External StepCheck::slice(const SavedStep& step, const SavedLoop::Slice& given) const {
    if (is_absent(given.whole)) {
        fail(step, "a slice has no memory");
    }
    const MemoryRange whole{given.whole, whole_bytes(step, given), "a slice"};
    inside(step, whole, 1, given.written);
    External made;
    made.bytes = given.stride;
    made.writable = given.written;
    made.alignment = std::size_t{1} << std::countr_zero(alignment_of(given.whole) | given.stride);
    made.parts.push_back(whole);
    return made;
}

// A slice of a buffer: rows that another loop has stacked.
StepCheck::External StepCheck::read_buffer(const SavedStep& step, const SavedLoop::Slice& given) {
    const std::size_t bytes = readable(step, given.whole).bytes;
    if (given.written || given.stride != 0) {
        fail(step, "a slice of a buffer is written, or has a stride");
    }
    ++rows(given.whole).readers;
    External made;
    made.bytes = bytes;
    made.alignment = std::size_t{1} << std::countr_zero(kAlignment | bytes);
    return made;
}

// No other memory overlaps the row: only the loop uses the buffer.
StepCheck::External StepCheck::stack(const SavedStep& step, const SavedLoop::Stack& given) {
    const SavedLoop& loop = *step.loop;
    const Rows& found = readable(step, given.whole);
    if (found.readers > 0) {
        fail(step, "it writes a buffer while a loop reads it");
    }
    const bool counted =
        loop.trips >= 0 || !is_absent(loop.trip_count) ||
        std::any_of(loop.slices.begin(), loop.slices.end(), [&](const auto& each) { return is_buffer(each.whole); });
    if (given.backwards && !counted) {
        fail(step, "a stack from the end needs the number of iterations");
    }
    External made;
    made.bytes = found.bytes;
    made.writable = true;
    made.alignment = std::size_t{1} << std::countr_zero(kAlignment | found.bytes);
    rows(given.whole).written = true;
    return made;
}

// Adds to a state that is a row of a slice or stack what the previous row is.
void StepCheck::follow_rows(const SavedStep& step, const SavedLoop::State& given, External& before) const {
    const SavedLoop& loop = *step.loop;
    std::size_t alignment = 0, bytes = 0;
    bool written = true;
    if (*given.row < loop.slices.size()) {
        const SavedLoop::Slice& rows = loop.slices[*given.row];
        written = rows.written;
        bytes = rows.stride;
        if (written) {  // then it is not a buffer
            alignment = alignment_of(rows.whole);
            before.parts.push_back({rows.whole, whole_bytes(step, rows), "a slice"});
        }
    } else {
        bytes = buffers_.at(loop.stacks[*given.row - loop.slices.size()].whole.external).bytes;
    }
    if (!written || bytes != given.bytes) {
        fail(step, "a state is not a row of its slice");
    }
    before.alignment = std::size_t{1} << std::countr_zero(before.alignment | alignment | bytes);
}

StepCheck::External StepCheck::state_before(const SavedStep& step, const SavedLoop::State& given) const {
    const SavedLoop& loop = *step.loop;
    if (given.row ? !given.turns.empty() || *given.row >= loop.slices.size() + loop.stacks.size()
                  : given.turns.size() != 2) {
        fail(step, "a state needs two places, or a row");
    }
    if (is_absent(given.initial)) {
        fail(step, "a state has no first value");
    }
    const MemoryRange initial{given.initial, given.bytes, "the first value of a state"};
    inside(step, initial, 1, false);
    inside(step, {given.final, given.bytes, "the last value of a state"}, 1, true);
    External made;
    made.bytes = given.bytes;
    made.alignment = alignment_of(given.initial);
    made.parts.push_back(initial);
    if (given.row) {
        follow_rows(step, given, made);
    }
    for (const Location& place : given.turns) {
        const MemoryRange range{place, given.bytes, "a state"};
        if (place.external != Location::kArena) {
            fail(step, "a state is not in the arena");
        }
        inside(step, range, 1, true);
        made.alignment = std::min(made.alignment, alignment_of(place));
        made.parts.push_back(range);
    }
    return made;
}

StepCheck::External StepCheck::state_after(const SavedLoop::State& given) const {
    External made;
    made.bytes = given.bytes;
    made.writable = true;
    for (const Location& place : given.turns) {
        made.alignment = std::min(made.alignment, alignment_of(place));
        made.parts.push_back({place, given.bytes, "a state"});
    }
    return made;
}

// Throws if memory that the loop writes overlaps other memory of the loop.
void StepCheck::loop_apart(const SavedStep& step) const {
    std::vector<MemoryRange> read, written;
    for (const SavedLoop::Slice& given : step.loop->slices) {
        if (is_buffer(given.whole)) {  // no other memory overlaps it
            continue;
        }
        (given.written ? written : read).push_back({given.whole, whole_bytes(step, given), "a slice"});
    }
    for (const SavedLoop::State& given : step.loop->states) {
        read.push_back({given.initial, given.bytes, "the first value of a state"});
        written.push_back({given.final, given.bytes, "the last value of a state"});
        for (const Location& place : given.turns) {
            written.push_back({place, given.bytes, "a state"});
        }
    }
    for (std::size_t i = 0; i < written.size(); ++i) {
        for (std::size_t other = 0; other < i; ++other) {
            if (overlap(written[i], written[other])) {
                fail(step, written[i].what + " overlaps " + written[other].what);
            }
        }
        for (const MemoryRange& range : read) {
            if (overlap(written[i], range)) {
                fail(step, written[i].what + " overlaps " + range.what);
            }
        }
    }
}

}  // namespace graphkit
