#include "step.h"

#include <functional>
#include <numeric>

namespace graphkit {

void Step::run(std::span<const void* const> inputs, std::span<void* const> outputs, const Packed* packed) {
    Team team(threads_);
    execute(team, inputs, outputs, packed);
}

std::unique_ptr<Packed> Step::pack(const void*) const {
    throw NativeError(describe() + ": has no operand that can be packed");
}

std::string Step::describe() const {
    std::string text = name_ + "(";
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
        text += (i == 0 ? "" : ", ") + to_string(inputs_[i]);
    }
    text += ") -> ";
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
        text += (i == 0 ? "" : ", ") + to_string(outputs_[i]);
    }
    return text;
}

std::string to_string(const Dims& dims) {
    std::string text = "[";
    for (std::size_t i = 0; i < dims.size(); ++i) {
        text += (i == 0 ? "" : ", ") + std::to_string(dims[i]);
    }
    return text + "]";
}

std::string to_string(const TensorSpec& spec) {
    return spec.name + (spec.type == ElementType::f32 ? " f32" : " i64") + to_string(spec.shape);
}

std::int64_t count(const Dims& dims) {
    return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

}  // namespace graphkit
