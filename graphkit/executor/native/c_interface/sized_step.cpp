// Steps of a saved program whose kernels are made in a run, from the shapes of buffers.
#include "c_interface/sized_step.h"

#include <algorithm>
#include <utility>

#include "runtime/make_factory.h"

namespace graphkit {
namespace {

[[noreturn]] void fail(const SavedStep& step, const std::string& text) {
    throw NativeError(step.name + ": " + text);
}

// Returns the bytes of an array. Throws NativeError if they are out of range.
std::size_t bytes_of_array(const SavedStep& step, const Dims& shape, std::uint64_t item) {
    std::size_t bytes = item;
    for (const std::int64_t size : shape) {
        if (size < 0 || __builtin_mul_overflow(bytes, static_cast<std::size_t>(size), &bytes)) {
            fail(step, "an operand has the wrong shape " + to_string(shape));
        }
    }
    if (item == 0 || bytes > kMostBytes) {
        fail(step, "the size of an operand is out of range");
    }
    return bytes;
}

struct OwningPrepared : Prepared {
    std::unique_ptr<Kernel> owned;
};

// A step, with everything that a run needs.
struct Maker {
    SavedStep step;
    std::vector<std::optional<SavedBuffer>> buffers;  // of the results; no value: not a buffer
    std::shared_ptr<const KernelFactory> factory;

    Dims result_shape(std::size_t number, const Shapes& inputs) const {
        Dims shape;
        for (const auto& [operand, size] : step.sized->results[number].sizes) {
            // `StepCheck::sized` has checked that the operand has this axis.
            shape.push_back(operand < 0 ? size
                                        : (*inputs[static_cast<std::size_t>(operand)])[static_cast<std::size_t>(size)]);
        }
        return shape;
    }

    void require_fit(const TensorSpec& spec, const std::optional<Dims>& shape, std::uint64_t item) const {
        if (!shape) {
            if (!spec.optional) {
                fail(step, "'" + spec.name + "' is absent");
            }
            return;
        }
        if (size_of(spec.type) != item || checked_bytes(spec.shape, spec.type) > bytes_of_array(step, *shape, item)) {
            fail(step, "the kernel for these sizes does not fit '" + spec.name + "'");
        }
    }

    std::shared_ptr<const Prepared> operator()(const Dynamic::Shapes& given, const Dynamic::Shapes&) const {
        Shapes inputs, outputs;
        for (std::size_t i = 0; i < given.size(); ++i) {
            inputs.push_back(given[i] ? given[i] : step.sized->operands[i].shape);
        }
        auto made = std::make_shared<OwningPrepared>();
        for (std::size_t i = 0; i < buffers.size(); ++i) {
            const Dims shape = result_shape(i, inputs);
            if (buffers[i] &&
                !std::equal(shape.begin() + 1, shape.end(), buffers[i]->row.begin(), buffers[i]->row.end())) {
                fail(step, "a result has rows of another shape than its buffer");
            }
            made->shapes.push_back(shape);
            outputs.emplace_back(shape);
        }
        try {
            made->owned = make_checked_kernel(*factory, inputs, outputs);
        } catch (const NativeError& error) {
            fail(step, error.what());
        }
        if (made->owned == nullptr || !made->owned->packed_inputs().empty() ||
            made->owned->inputs().size() > inputs.size() || made->owned->outputs().size() > outputs.size()) {
            fail(step, "it has no kernel for these sizes");
        }
        const Kernel& kernel = *made->owned;
        for (std::size_t i = 0; i < kernel.inputs().size(); ++i) {
            require_fit(kernel.inputs()[i], inputs[i], step.sized->operands[i].item);
        }
        for (std::size_t i = 0; i < kernel.outputs().size(); ++i) {
            const bool absent = step.outputs[i].external == Location::kAbsent;
            require_fit(kernel.outputs()[i], absent ? std::nullopt : outputs[i], step.sized->results[i].item);
        }
        made->kernel = &kernel;
        made->scratch_bytes = kernel.scratch_bytes();
        return made;
    }
};

}  // namespace

bool StepCheck::has_axis(const SavedStep& step, std::int64_t operand, std::int64_t axis) const {
    const auto number = static_cast<std::size_t>(operand);
    if (operand < 0 || axis < 0 || number >= step.inputs.size()) {
        return false;
    }
    const auto& shape = step.sized->operands[number].shape;
    const std::size_t axes = shape                            ? shape->size()
                             : is_buffer(step.inputs[number]) ? buffers_.at(step.inputs[number].external).axes
                                                              : 0;
    return static_cast<std::size_t>(axis) < axes;
}

void StepCheck::sized(const SavedStep& step) const {
    if (!step.sized || step.sized->operands.size() != step.inputs.size() ||
        step.sized->results.size() != step.outputs.size()) {
        fail(step, "it got another number of operands");
    }
    std::vector<MemoryRange> others;
    for (std::size_t i = 0; i < step.inputs.size(); ++i) {
        const auto& [shape, item] = step.sized->operands[i];
        if (is_buffer(step.inputs[i])) {
            readable(step, step.inputs[i]);
        }
        if (shape.has_value() == (is_buffer(step.inputs[i]) || step.inputs[i].external == Location::kAbsent)) {
            fail(step, "only the shapes of buffers are computed in a run");
        }
        if (shape) {
            others.push_back({step.inputs[i], bytes_of_array(step, *shape, item), "an operand"});
            inside(step, others.back(), item, false);
        }
    }
    for (std::size_t i = 0; i < step.outputs.size(); ++i) {
        sized_result(step, i, others);
    }
}

// others: the operands, and the results before this one.
void StepCheck::sized_result(const SavedStep& step, std::size_t number, std::vector<MemoryRange>& others) const {
    const auto& [sizes, item] = step.sized->results[number];
    const Location& at = step.outputs[number];
    Dims known;
    for (const auto& [operand, size] : sizes) {
        if (operand == -1) {
            known.push_back(size);
        }
        if (operand == -1 ? size < 0 : !has_axis(step, operand, size)) {
            fail(step, "a size of a result is that of an axis that does not exist");
        }
    }
    if (is_buffer(at)) {
        const auto same = [&](const Location& other) { return other.external == at.external; };
        const Rows& rows = readable(step, at);
        if (rows.readers > 0 || rows.axes != sizes.size() ||
            std::any_of(step.inputs.begin(), step.inputs.end(), same) ||
            std::count_if(step.outputs.begin(), step.outputs.end(), same) > 1) {
            fail(step, "a result cannot be written to its buffer");
        }
    } else if (at.external != Location::kAbsent) {
        if (known.size() != sizes.size()) {
            fail(step, "a result whose size is computed in a run is not in a buffer");
        }
        const MemoryRange range{at, bytes_of_array(step, known, item), "a result"};
        inside(step, range, item, true);
        if (std::any_of(others.begin(), others.end(),
                        [&](const MemoryRange& other) { return overlap(range, other); })) {
            fail(step, "a result overlaps another operand");
        }
        others.push_back(range);
    }
}

Dynamic::Make sized_kernel_maker(const SavedStep& step, std::vector<std::optional<SavedBuffer>> results) {
    return Maker{step, std::move(results), make_factory(step.sized->recipe)};
}

}  // namespace graphkit
