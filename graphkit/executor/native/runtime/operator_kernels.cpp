#include "runtime/operator_kernels.h"

#include <nanobind/stl/map.h>

#include <utility>

#include "runtime/bindings.h"

namespace graphkit {
namespace {

using Key = std::pair<std::string, std::string>;

std::map<Key, MakeKernel>& makers() {
    static std::map<Key, MakeKernel> all;  // filled while the module is loaded, in no known order
    return all;
}

template <typename T>
const T& attribute(const NodeSpec& node, const std::string& name) {
    const auto found = node.attributes.find(name);
    const T* value = found == node.attributes.end() ? nullptr : std::get_if<T>(&found->second);
    if (value == nullptr) {
        throw Unsupported("no value of that kind for " + name);
    }
    return *value;
}

// Name, shape, element type; for inputs the elements, where they are known.
using Input = std::tuple<std::string, Dims, std::string, std::optional<std::vector<std::int64_t>>>;
using Output = std::tuple<std::string, Dims, std::string>;

Kernel* make_kernel(Text domain, Text name, const std::vector<std::optional<Input>>& inputs,
                    const std::vector<Output>& outputs, std::map<std::string, NodeSpec::Attribute> attributes,
                    int threads) {
    NodeSpec node;
    for (const auto& input : inputs) {
        auto& made = node.inputs.emplace_back();
        if (input) {
            const auto& [label, shape, type, elements] = *input;
            made = NodeSpec::Input{{label, shape, element_type(type)}, elements};
        }
    }
    for (const auto& [label, shape, type] : outputs) {
        node.outputs.push_back({label, shape, element_type(type)});
    }
    node.attributes = std::move(attributes);
    node.threads = threads;
    const auto maker = makers().find({domain, name});
    if (maker == makers().end()) {
        throw Unsupported("no kernel for " + name);
    }
    return maker->second(node).release();
}

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

OperatorKernel::OperatorKernel(const char* domain, const char* name, MakeKernel make) {
    makers()[{domain, name}] = make;
}

GRAPHKIT_BINDINGS(operator_kernels) {
    m.def(
        "operators",
        [] {
            std::vector<Key> found;
            for (const auto& [key, maker] : makers()) {
                found.push_back(key);
            }
            return found;
        },
        "(domain, name) of the operators that make_kernel makes kernels for.");
    m.def("make_kernel", &make_kernel, "domain"_a, "name"_a, "inputs"_a, "outputs"_a, "attributes"_a, "threads"_a,
          nb::rv_policy::take_ownership,
          "A kernel for a node: inputs are (name, shape, dtype, elements or None), None when absent; outputs (name, "
          "shape, dtype).");
}

}  // namespace graphkit
