// Dynamic kernels: looked up by the shapes of their operands, or made for them.
#include "runtime/bytes.h"
#include "runtime/program.h"

namespace graphkit {
namespace {

// Most prepared kernels that a dynamic node caches. If shapes never repeat, the cache is cleared when it is full.
constexpr std::size_t kPreparedLimit = 4096;

}  // namespace

const Prepared& Instance::prepared(const Dynamic& dynamic, const std::string& name) {
    key_.clear();
    for (std::size_t i = 0; i < dynamic.inputs.size(); ++i) {
        const Dynamic::Operand& operand = dynamic.inputs[i];
        if (operand.buffer >= 0) {
            const Dims& shape = shape_of(operand.buffer);
            key_.push_back(static_cast<std::int64_t>(shape.size()));
            key_.insert(key_.end(), shape.begin(), shape.end());
        }
        if (operand.by_value) {
            append_elements(operand, table_[dynamic.first_input + i], key_);
        }
    }
    Known& known = known_[dynamic.number];
    if (known.latest != nullptr && *known.latest_key == key_) {
        return *known.latest;
    }
    auto found = known.found.find(key_);
    if (found == known.found.end()) {
        if (known.found.size() >= kPreparedLimit) {
            known.latest = nullptr;
            known.found.clear();
        }
        found = known.found.emplace(key_, prepare(dynamic, name)).first;
    }
    known.latest_key = &found->first;
    known.latest = found->second.get();
    return *known.latest;
}

std::shared_ptr<const Prepared> Instance::prepare(const Dynamic& dynamic, const std::string& name) const {
    Dynamic::Shapes shapes(dynamic.inputs.size());
    Dynamic::Shapes values(dynamic.inputs.size());
    for (std::size_t i = 0; i < dynamic.inputs.size(); ++i) {
        const Dynamic::Operand& operand = dynamic.inputs[i];
        if (operand.buffer >= 0) {
            shapes[i] = shape_of(operand.buffer);
        }
        if (operand.by_value) {
            append_elements(operand, table_[dynamic.first_input + i], values[i].emplace());
        }
    }
    std::shared_ptr<const Prepared> made = dynamic.make(shapes, values);
    const Kernel* const kernel = made->kernel;
    if (kernel != nullptr &&
        (kernel->inputs().size() > dynamic.input_entries || kernel->outputs().size() > dynamic.outputs.size())) {
        throw NativeError(name + ": " + kernel->describe() + " got too few operands");
    }
    return made;
}

std::int64_t Instance::elements_of(const Dynamic::Operand& operand) const {
    return operand.buffer < 0 ? operand.elements : count(shape_of(operand.buffer));
}

void Instance::append_elements(const Dynamic::Operand& operand, const void* data, Dims& to) const {
    const bool narrow = operand.item == sizeof(std::int32_t);
    for (std::int64_t i = 0; i < elements_of(operand); ++i) {
        to.push_back(narrow ? static_cast<const std::int32_t*>(data)[i] : static_cast<const std::int64_t*>(data)[i]);
    }
}

void Instance::run_dynamic(const Dynamic& dynamic, const std::string& name) {
    const Prepared& chosen = prepared(dynamic, name);
    if (chosen.call) {
        call_dynamic(dynamic, chosen, name);
        return;
    }
    for (std::size_t i = 0; i < dynamic.outputs.size(); ++i) {
        if (dynamic.outputs[i].buffer >= 0) {
            resize(dynamic.outputs[i].buffer, chosen.shapes[i], dynamic.outputs[i].item);
        }
    }
    for (const auto& [input, output] : chosen.views) {
        copy_bytes(table_[dynamic.first_output + output], table_[dynamic.first_input + input],
                   bytes_of(chosen.shapes[output], dynamic.outputs[output].item));
    }
    for (const auto& [output, bytes] : chosen.known) {
        copy_bytes(table_[dynamic.first_output + output], bytes.data(), bytes.size());
    }
    if (chosen.kernel != nullptr) {
        scratch_.reserve(chosen.scratch_bytes, 0, allowance_);
        run_kernel(*chosen.kernel, dynamic.first_input, dynamic.first_output, scratch_.data(), name);
    }
}

void Instance::call_dynamic(const Dynamic& dynamic, const Prepared& chosen, const std::string& name) {
    std::vector<std::size_t> bytes;
    for (const Dynamic::Operand& operand : dynamic.inputs) {
        bytes.push_back(static_cast<std::size_t>(elements_of(operand)) * operand.item);
    }
    chosen.call(&table_[dynamic.first_input], bytes,
                [&](std::size_t output, const void* data, const Dims& shape, std::size_t size) {
                    const Dynamic::Operand& target = dynamic.outputs[output];
                    if (target.buffer >= 0) {
                        store(target.buffer, data, shape, target.item);
                    } else if (size != static_cast<std::size_t>(target.elements) * target.item) {
                        throw NativeError(name + ": result " + std::to_string(output) + " has the shape " +
                                          to_string(shape) + ", which is not what was inferred");
                    } else if (void* const place = table_[dynamic.first_output + output]; place != nullptr) {
                        copy_bytes(place, data, size);
                    }
                });
}

}  // namespace graphkit
