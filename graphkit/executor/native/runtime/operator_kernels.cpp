#include "runtime/operator_kernels.h"

#include <nanobind/stl/map.h>

#include <utility>

#include "runtime/bindings.h"

namespace graphkit {
namespace {

using Key = std::pair<std::string, std::string>;

std::map<Key, MakeKernel>& makers() {
    // Filled while the module is loaded, in no known order; never destroyed, as runs make kernels.
    static std::map<Key, MakeKernel>& all = *new std::map<Key, MakeKernel>;
    return all;
}

std::vector<Key>& second_makers() {
    static std::vector<Key>& all = *new std::vector<Key>;
    return all;
}

// A kernel that says what it takes wrongly would read and write beyond its operands.
void require_equal(const Kernel& kernel, const std::string& what, const TensorSpec& said, const TensorSpec& given) {
    if (said.shape != given.shape || said.type != given.type) {
        throw NativeError(kernel.describe() + ": " + what + " is " + to_string(said) + " in the kernel, but " +
                          to_string(given) + " in the node");
    }
}

void require_operands(const Kernel& kernel, const NodeSpec& node) {
    for (std::size_t i = 0; i < kernel.inputs().size(); ++i) {
        const TensorSpec& said = kernel.inputs()[i];
        if (node.has_input(i)) {
            require_equal(kernel, "input", said, node.inputs[i]->tensor);
        } else if (!said.optional) {
            throw NativeError(kernel.describe() + ": the node lacks the input '" + said.name +
                              "', which the kernel needs");
        }
    }
    if (kernel.outputs().size() != node.outputs.size()) {
        throw NativeError(kernel.describe() + ": number of outputs: " + std::to_string(kernel.outputs().size()) +
                          " in the kernel, " + std::to_string(node.outputs.size()) + " in the node");
    }
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
        require_equal(kernel, "output", kernel.outputs()[i], node.outputs[i]);
    }
}

template <typename T>
const T& attribute(const NodeSpec& node, const std::string& name) {
    const auto found = node.attributes->find(name);
    if (found == node.attributes->end()) {
        throw NativeError("the operator has no attribute " + name);
    }
    if (!found->second) {
        throw Unsupported("no value for " + name);
    }
    const T* value = std::get_if<T>(&*found->second);
    if (value == nullptr) {
        throw NativeError("the attribute " + name + " has the wrong type");
    }
    return *value;
}

// Name, shape, element type; for inputs the elements, where they are known.
using Input = std::tuple<std::string, Dims, std::string, std::optional<std::vector<std::int64_t>>>;
using Output = std::tuple<std::string, Dims, std::string>;

// An operator with its attributes, which are converted once for all of its kernels.
class DescribedOperator {
  public:
    DescribedOperator(const std::string& domain, const std::string& name, NodeSpec::Attributes attributes)
        : attributes_(std::move(attributes)) {
        const auto found = makers().find({domain, name});
        if (found == makers().end()) {
            throw Unsupported("no kernel for " + name);
        }
        make_ = found->second;
    }

    Kernel* make(const std::vector<std::optional<Input>>& inputs, const std::vector<Output>& outputs,
                 int threads) const {
        NodeSpec node;
        node.inputs.reserve(inputs.size());
        for (const auto& input : inputs) {
            auto& made = node.inputs.emplace_back();
            if (input) {
                const auto& [label, shape, type, elements] = *input;
                made = NodeSpec::Input{{label, shape, element_type(type)}, elements};
            }
        }
        node.outputs.reserve(outputs.size());
        for (const auto& [label, shape, type] : outputs) {
            node.outputs.push_back({label, shape, element_type(type)});
        }
        node.attributes = &attributes_;
        node.threads = threads;
        std::unique_ptr<Kernel> made = make_(node);
        require_operands(*made, node);
        return made.release();
    }

  private:
    NodeSpec::Attributes attributes_;
    MakeKernel make_;
};

}  // namespace

const NodeSpec::Input& NodeSpec::input(std::size_t position) const {
    if (!has_input(position)) {
        throw Unsupported("an operand is absent");
    }
    return *inputs[position];
}

const std::vector<std::int64_t>& NodeSpec::elements(std::size_t position) const {
    const Input& found = input(position);
    if (!found.elements) {
        throw Unsupported("the elements of " + found.tensor.name + " are not known");
    }
    return *found.elements;
}

std::int64_t NodeSpec::integer(const std::string& name) const {
    return attribute<std::int64_t>(*this, name);
}

double NodeSpec::real(const std::string& name) const {
    return attribute<double>(*this, name);
}

const std::string& NodeSpec::text(const std::string& name) const {
    return attribute<std::string>(*this, name);
}

const std::vector<std::int64_t>& NodeSpec::integers(const std::string& name) const {
    return attribute<std::vector<std::int64_t>>(*this, name);
}

const std::vector<double>& NodeSpec::reals(const std::string& name) const {
    return attribute<std::vector<double>>(*this, name);
}

OperatorKernel::OperatorKernel(const char* domain, const char* name, MakeKernel make) {
    if (!makers().try_emplace({domain, name}, make).second) {
        second_makers().emplace_back(domain, name);
    }
}

GRAPHKIT_BINDINGS(operator_kernels) {
    m.def(
        "operators",
        [] {
            for (const auto& [domain, name] : second_makers()) {
                throw NativeError("two kernels for " + domain + "." + name +
                                  " (in an .isa.cpp: outside of GRAPHKIT_ONCE)");
            }
            std::vector<Key> found;
            for (const auto& [key, maker] : makers()) {
                found.push_back(key);
            }
            return found;
        },
        "(domain, name) of the operators with kernels of DescribedOperator.");
    nb::class_<DescribedOperator>(m, "DescribedOperator", "Makes kernels for the nodes of one operator.")
        .def(nb::init<const std::string&, const std::string&, NodeSpec::Attributes>(), "domain"_a, "name"_a,
             "attributes"_a)
        .def("make", &DescribedOperator::make, "inputs"_a, "outputs"_a, "threads"_a, nb::rv_policy::take_ownership,
             "Return a kernel for a node. Inputs are (name, shape, dtype, elements or None), None if absent. Outputs "
             "are (name, shape, dtype).");
}

}  // namespace graphkit
