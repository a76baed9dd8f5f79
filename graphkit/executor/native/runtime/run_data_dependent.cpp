// Steps with data-dependent kernels, whose result shapes are known only during the run.
#include "runtime/bytes.h"
#include "runtime/data_dependent.h"
#include "runtime/program.h"

namespace graphkit {

std::string DataDependentKernel::describe(const std::vector<Operand>& inputs) const {
    std::string text = name_ + "(";
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        text += i > 0 ? ", " : "";
        text += inputs[i].is_there() ? name_of(inputs_[i]) + to_string(inputs[i].shape) : "-";
    }
    return text + ")";
}

// Provides memory of results: planned memory, or buffers of the instance.
class Instance::Results final : public RunMemory {
  public:
    Results(Instance& instance, const DataDependentStep& step)
        : shapes(step.outputs.size()), instance_(instance), step_(step) {}

    void* result(std::size_t output, const Dims& shape) override {
        const DataDependentStep::Output& target = step_.outputs[output];
        shapes[output] = shape;
        if (target.buffer >= 0) {
            instance_.resize(target.buffer, shape, size_of(step_.kernel->outputs()[output]));
            return instance_.memory(target.buffer).data;
        }
        void* const place = instance_.table_[step_.first_output + output];
        if (place != nullptr && count(shape) != target.elements) {
            throw NativeError("result " + std::to_string(output) + " has the shape " + to_string(shape) +
                              ", which is not what was inferred");
        }
        return place;
    }

    std::byte* scratch(std::size_t bytes) override {
        instance_.scratch_.reserve(bytes, 0, instance_.allowance_);
        return instance_.scratch_.data();
    }

    std::vector<Dims> shapes;

  private:
    Instance& instance_;
    const DataDependentStep& step_;
};

void Instance::run_data_dependent(const DataDependentStep& step, const std::string& name) {
    std::vector<Operand> operands(step.inputs.size());
    for (std::size_t i = 0; i < operands.size(); ++i) {
        const DataDependentStep::Input& input = step.inputs[i];
        operands[i] = {table_[step.first_input + i], input.buffer >= 0 ? shape_of(input.buffer) : input.shape};
    }
    Results results(*this, step);
    try {
        step.kernel->run(operands, results);
    } catch (const NativeError& error) {
        throw NativeError(name + ": " + error.what());
    }
    if (step.found) {
        step.found(results.shapes);
    }
}

}  // namespace graphkit
