#include "c_interface/step_check.h"

#include <algorithm>
#include <bit>

namespace graphkit {
namespace {

// Most levels of blocks in blocks: reading and running them takes a part of the stack for each.
constexpr int kMostLevels = 32;

// A level of blocks, during its lifetime.
class Level {
  public:
    Level() {
        if (depth_ == kMostLevels) {
            throw BadRecipe("there are more than " + std::to_string(kMostLevels) + " levels of branches and loops");
        }
        ++depth_;
    }
    ~Level() { --depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

  private:
    static thread_local int depth_;
};

thread_local int Level::depth_ = 0;

[[noreturn]] void fail(const SavedStep& step, const std::string& text) {
    throw NativeError(step.name + ": " + text);
}

}  // namespace

SavedStep RecipeCodec<SavedStep>::read(RecipeReader& from) {
    const Level level;
    SavedStep step;
    const auto read = [&]<typename T>(T& field) { field = RecipeCodec<T>::read(from); };
    read(step.kind);
    read(step.name);
    read(step.kernel);
    read(step.inputs);
    read(step.layouts);
    read(step.outputs);
    read(step.scratch);
    read(step.bytes);
    read(step.axes);
    read(step.sized);
    read(step.loop);
    read(step.blocks);
    return step;
}

std::size_t checked_bytes(const Dims& shape, ElementType type) {
    std::size_t bytes = size_of(type);
    bool empty = false, large = false;
    for (const std::int64_t size : shape) {
        if (size < 0) {
            throw NativeError("the shape " + to_string(shape) + " has a negative size");
        }
        empty = empty || size == 0;
        large = large || __builtin_mul_overflow(bytes, static_cast<std::size_t>(size), &bytes) || bytes > kMostBytes;
    }
    if (large && !empty) {
        throw NativeError("an array of shape " + to_string(shape) + " is too large");
    }
    return empty ? 0 : bytes;
}

StepCheck::StepCheck(std::uint64_t arena_bytes, int externals)
    : arena_bytes_(arena_bytes), externals_(static_cast<std::size_t>(externals)) {
    if (arena_bytes > kMostBytes) {
        throw NativeError("the arena is too large");
    }
}

void StepCheck::add_external(int external, std::size_t bytes, bool writable) {
    if (external < 0 || static_cast<std::size_t>(external) >= externals_.size()) {
        throw NativeError("external memory has a wrong number");
    }
    External& made = externals_[static_cast<std::size_t>(external)];
    if (made.known) {
        throw NativeError("external memory is given twice");
    }
    made.known = true;
    made.bytes = bytes;
    made.writable = writable;
}

void StepCheck::add_constant(int external, std::size_t bytes) {
    add_external(external, bytes, false);
    externals_[static_cast<std::size_t>(external)].constant = true;
}

void StepCheck::add_buffer(int external, const SavedBuffer& buffer) {
    std::size_t bytes = buffer.item;
    for (const std::int64_t size : buffer.row) {
        if (size < 0 || __builtin_mul_overflow(bytes, static_cast<std::size_t>(size), &bytes)) {
            throw NativeError("the rows of a buffer have the wrong shape " + to_string(buffer.row));
        }
    }
    if (bytes > kMostBytes || external < 0 || static_cast<std::size_t>(external) >= externals_.size() ||
        externals_[static_cast<std::size_t>(external)].known) {
        throw NativeError("the size or the number of a buffer is out of range");
    }
    buffers_[external] = {buffer.row.size() + 1, bytes};
}

bool StepCheck::is_buffer(const Location& location) const {
    return buffers_.contains(location.external);
}

int StepCheck::level_of(const Location& location) const {
    return location.external < 0 ? 0 : externals_[static_cast<std::size_t>(location.external)].level;
}

std::size_t StepCheck::alignment_of(const Location& location) const {
    const std::size_t base =
        location.external < 0 ? kAlignment : externals_[static_cast<std::size_t>(location.external)].alignment;
    return std::size_t{1} << std::countr_zero(base | static_cast<std::size_t>(location.offset));
}

// Whether two ranges that steps of the same block use may share memory. Both were checked by `inside`.
bool StepCheck::overlap(const MemoryRange& a, const MemoryRange& b) const {
    if (a.at.external == Location::kAbsent || b.at.external == Location::kAbsent || a.bytes == 0 || b.bytes == 0) {
        return false;
    }
    if (a.at.external == b.at.external) {
        return a.at.offset < b.at.offset + static_cast<std::int64_t>(b.bytes) &&
               b.at.offset < a.at.offset + static_cast<std::int64_t>(a.bytes);
    }
    const int a_level = level_of(a.at), b_level = level_of(b.at);
    if (a_level == b_level) {
        return false;  // begin_loop has checked that the memory of a loop is apart
    }
    const MemoryRange& inner = a_level > b_level ? a : b;
    const MemoryRange& outer = a_level > b_level ? b : a;
    const std::vector<MemoryRange>& parts = externals_[static_cast<std::size_t>(inner.at.external)].parts;
    return std::any_of(parts.begin(), parts.end(), [&](const MemoryRange& part) { return overlap(part, outer); });
}

void StepCheck::inside(const SavedStep& step, const MemoryRange& range, std::size_t alignment, bool written) const {
    const auto& [external, offset] = range.at;
    if (external == Location::kAbsent) {
        return;
    }
    std::uint64_t room = arena_bytes_;
    if (external != Location::kArena) {
        if (external < 0 || static_cast<std::size_t>(external) >= externals_.size() ||
            !externals_[static_cast<std::size_t>(external)].known) {
            fail(step, range.what + " is in external memory that does not exist");
        }
        const External& memory = externals_[static_cast<std::size_t>(external)];
        if (written && !memory.writable) {
            fail(step, range.what + " would be written to memory that can only be read");
        }
        room = memory.bytes;
    }
    if (offset < 0 || static_cast<std::uint64_t>(offset) > room ||
        range.bytes > room - static_cast<std::uint64_t>(offset)) {
        fail(step, range.what + " is outside of its memory");
    }
    if (alignment_of(range.at) < alignment) {
        fail(step, range.what + " is not aligned");
    }
}

void StepCheck::outputs_apart(const SavedStep& step, const Kernel& kernel, const std::vector<MemoryRange>& inputs,
                              const std::vector<MemoryRange>& outputs) const {
    const auto shared = kernel.inplace();
    for (std::size_t o = 0; o < outputs.size(); ++o) {
        for (std::size_t other = 0; other < o; ++other) {
            if (overlap(outputs[o], outputs[other])) {
                fail(step, "two results overlap");
            }
        }
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            const bool may_share =
                inputs[i].at.external == outputs[o].at.external && inputs[i].at.offset == outputs[o].at.offset &&
                std::find(shared.begin(), shared.end(), std::pair(static_cast<int>(i), static_cast<int>(o))) !=
                    shared.end();
            if (!may_share && overlap(outputs[o], inputs[i])) {
                fail(step, outputs[o].what + " overlaps " + inputs[i].what);
            }
        }
    }
}

void StepCheck::kernel(const SavedStep& step, const Kernel& kernel) const {
    const std::size_t given = kernel.inputs().size(), results = kernel.outputs().size();
    if (step.inputs.size() != given || step.outputs.size() != results || step.layouts.size() != given) {
        fail(step, kernel.describe() + " got another number of operands");
    }
    const std::vector<int> packed = kernel.packed_inputs();
    std::vector<MemoryRange> inputs, outputs;
    for (std::size_t i = 0; i < given; ++i) {
        const TensorSpec& spec = kernel.inputs()[i];
        const int position = static_cast<int>(i);
        const bool is_packed = std::find(packed.begin(), packed.end(), position) != packed.end();
        if (step.layouts[i] != (is_packed ? kernel.packed_layout(position) : "")) {
            fail(step, "'" + spec.name + "' has the layout '" + step.layouts[i] + "', but this library expects '" +
                           (is_packed ? kernel.packed_layout(position) : "") + "': write the file again");
        }
        const std::size_t bytes = is_packed ? kernel.packed_bytes(position) : checked_bytes(spec.shape, spec.type);
        inputs.push_back({step.inputs[i], bytes, "'" + spec.name + "'"});
        inside(step, inputs.back(), is_packed ? kAlignment : size_of(spec.type), false);
        const int external = step.inputs[i].external;  // exists, as `inside` has checked
        if (is_packed && (external < 0 || !externals_[static_cast<std::size_t>(external)].constant)) {
            fail(step, "'" + spec.name + "' is packed, but not a constant");
        }
    }
    for (std::size_t o = 0; o < results; ++o) {
        const TensorSpec& spec = kernel.outputs()[o];
        outputs.push_back({step.outputs[o], checked_bytes(spec.shape, spec.type), "'" + spec.name + "'"});
        inside(step, outputs.back(), size_of(spec.type), true);
    }
    const std::size_t scratch_bytes = kernel.scratch_bytes();
    if (scratch_bytes > kMostBytes ||
        step.scratch.external != (scratch_bytes > 0 ? Location::kArena : Location::kAbsent)) {
        fail(step, "the working memory is at a wrong place");
    }
    if (scratch_bytes > 0) {
        // Checked as another result, with which nothing may overlap.
        outputs.push_back({step.scratch, scratch_bytes, "the working memory"});
        inside(step, outputs.back(), kAlignment, true);
    }
    outputs_apart(step, kernel, inputs, outputs);
}

void StepCheck::copy(const SavedStep& step) const {
    if (step.inputs.size() != 1 || step.outputs.size() != 1 || step.bytes > kMostBytes ||
        step.inputs[0].external == Location::kAbsent || step.outputs[0].external == Location::kAbsent) {
        fail(step, "a copy needs one source and one destination");
    }
    const MemoryRange source{step.inputs[0], step.bytes, "the source"},
        target{step.outputs[0], step.bytes, "the target"};
    inside(step, source, 1, false);
    inside(step, target, 1, true);
    if (overlap(source, target)) {
        fail(step, "the source overlaps the target");
    }
}

void StepCheck::branch(const SavedStep& step) const {
    if (step.inputs.size() != 1 || step.inputs[0].external == Location::kAbsent || step.blocks.size() != 2) {
        fail(step, "a branch needs a condition and two blocks");
    }
    inside(step, {step.inputs[0], 1, "the condition"}, 1, false);
}

// Returns the rows of a buffer that a step uses.
const StepCheck::Rows& StepCheck::readable(const SavedStep& step, const Location& location) const {
    const auto found = buffers_.find(location.external);
    if (found == buffers_.end() || location.offset != 0) {
        fail(step, "it needs a buffer");
    }
    if (found->second.written) {
        fail(step, "it uses a buffer while a loop writes it");
    }
    return found->second;
}

void StepCheck::sizes(const SavedStep& step) const {
    const auto& [first, last] = step.axes;
    if (step.inputs.size() != 1 || step.outputs.size() != 1 || step.outputs[0].external == Location::kAbsent) {
        fail(step, "the sizes of a buffer need one source and one destination");
    }
    if (first > last || last > readable(step, step.inputs[0]).axes) {
        fail(step, "the buffer has no such axes");
    }
    inside(step, {step.outputs[0], (last - first) * sizeof(std::int64_t), "the target"}, sizeof(std::int64_t), true);
}

void StepCheck::row(const SavedStep& step) const {
    if (step.inputs.size() != 2 || step.outputs.size() != 1 || step.inputs[1].external == Location::kAbsent ||
        step.outputs[0].external == Location::kAbsent ||
        (step.bytes != sizeof(std::int32_t) && step.bytes != sizeof(std::int64_t))) {
        fail(step, "a row needs a buffer, an index and a destination");
    }
    inside(step, {step.inputs[1], step.bytes, "the index"}, step.bytes, false);
    inside(step, {step.outputs[0], readable(step, step.inputs[0]).bytes, "the target"}, 1, true);
}

}  // namespace graphkit
