#include "runtime/operator_kernels.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "runtime/bindings.h"
#include "runtime/kernel_factory.h"
#include "runtime/recipe.h"

namespace graphkit {
namespace {

using Key = std::pair<std::string, std::string>;

struct Maker {
    MakeKernel make;
    ReadPositions reads;
};

std::map<Key, Maker>& makers() {
    // Filled by static initializers, in any order. Never destroyed, because runs make kernels until the process ends.
    static std::map<Key, Maker>& all = *new std::map<Key, Maker>;
    return all;
}

std::vector<Key>& second_makers() {
    static std::vector<Key>& all = *new std::vector<Key>;
    return all;
}

// Throws NativeError if a kernel declares an operand differently from the node: it would read or write beyond the
// array.
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
    // A kernel may lack the last outputs if they are not used.
    std::size_t needed = node.outputs.size();
    while (needed > kernel.outputs().size() && !node.is_used(needed - 1)) {
        --needed;
    }
    if (kernel.outputs().size() != needed) {
        throw NativeError(kernel.describe() + ": number of outputs: " + std::to_string(kernel.outputs().size()) +
                          " in the kernel, " + std::to_string(needed) + " in the node");
    }
    for (std::size_t i = 0; i < needed; ++i) {
        require_equal(kernel, "output", kernel.outputs()[i], node.outputs[i]);
    }
}

const std::optional<NodeSpec::Attribute>& given(const NodeSpec& node, const std::string& name) {
    const auto found = node.attributes->find(name);
    if (found == node.attributes->end()) {
        throw NativeError("the operator has no attribute " + name);
    }
    return found->second;
}

template <typename T>
const T& attribute(const NodeSpec& node, const std::string& name) {
    const std::optional<NodeSpec::Attribute>& found = given(node, name);
    if (!found) {
        throw Unsupported("no value for " + name);
    }
    const T* value = std::get_if<T>(&*found);
    if (value == nullptr) {
        throw NativeError("the attribute " + name + " has the wrong type");
    }
    return *value;
}

// The name, the element type and, if they are known, the elements of an input.
using Input = std::tuple<std::string, std::string, std::optional<std::vector<std::int64_t>>>;
using Output = std::tuple<std::string, std::string>;

// Makes the kernels of one node with the MakeKernel function of its operator.
class DescribedFactory final : public KernelFactory {
  public:
    // `node` has the element types; its shapes are empty.
    DescribedFactory(MakeKernel maker, NodeSpec node, std::shared_ptr<const NodeSpec::Attributes> attributes)
        : make_(maker), node_(std::move(node)), attributes_(std::move(attributes)) {
        node_.attributes = attributes_.get();
    }

    std::unique_ptr<Kernel> make(const Shapes& inputs, const Shapes& outputs) const override {
        NodeSpec node = node_;
        for (std::size_t i = 0; i < node.inputs.size(); ++i) {
            if (node.inputs[i]) {
                node.inputs[i]->tensor.shape = present(inputs, i);
            }
        }
        for (std::size_t i = 0; i < node.outputs.size(); ++i) {
            node.outputs[i].shape = present(outputs, i);
        }
        std::unique_ptr<Kernel> made = make_(node);
        if (made != nullptr) {
            require_operands(*made, node);
        }
        return made;
    }

  private:
    MakeKernel make_;
    NodeSpec node_;
    std::shared_ptr<const NodeSpec::Attributes> attributes_;
};

constexpr const char* kDescribed = "operator";

// An operator with its attributes, which are converted once for all of its nodes.
class DescribedOperator {
  public:
    DescribedOperator(const std::string& domain, const std::string& name, NodeSpec::Attributes attributes)
        : domain_(domain),
          name_(name),
          attributes_(std::make_shared<const NodeSpec::Attributes>(std::move(attributes))) {
        const auto found = makers().find({domain, name});
        if (found == makers().end()) {
            throw Unsupported("no kernel for " + name);
        }
        maker_ = &found->second;
    }

    bool reads(std::size_t position) const {
        const ReadPositions& read = maker_->reads;
        return !read || std::find(read->begin(), read->end(), position) != read->end();
    }

    std::unique_ptr<KernelFactory> factory(const std::vector<std::optional<Input>>& inputs,
                                           const std::vector<Output>& outputs, std::vector<bool> used,
                                           std::vector<std::size_t> constants, int threads, bool sizes_vary,
                                           bool deterministic) const {
        NodeSpec node;
        for (const auto& input : inputs) {
            auto& made = node.inputs.emplace_back();
            if (input) {
                const auto& [label, type, elements] = *input;
                made = NodeSpec::Input{{label, {}, element_type(type)}, elements, reads(node.inputs.size() - 1)};
            }
        }
        for (const auto& [label, type] : outputs) {
            node.outputs.push_back({label, {}, element_type(type)});
        }
        node.used = std::move(used);
        node.constants = std::move(constants);
        node.threads = threads;
        node.sizes_vary = sizes_vary;
        node.deterministic = deterministic;
        std::string recipe;
        if (records_recipes()) {
            recipe = recipe_of(kDescribed, domain_, name_, *attributes_, inputs, outputs, node.used, node.constants,
                               threads, sizes_vary, deterministic);
        }
        auto made = std::make_unique<DescribedFactory>(maker_->make, std::move(node), attributes_);
        if (!recipe.empty()) {
            made->set_recipe(std::move(recipe));
        }
        return made;
    }

  private:
    std::string domain_, name_;
    std::shared_ptr<const NodeSpec::Attributes> attributes_;
    const Maker* maker_ = nullptr;
};

std::unique_ptr<KernelFactory> described_factory(const void*, RecipeReader& from) {
    const auto [domain, name, attributes, inputs, outputs, used, constants, threads, sizes_vary, deterministic] =
        read_arguments<std::string, std::string, NodeSpec::Attributes, std::vector<std::optional<Input>>,
                       std::vector<Output>, std::vector<bool>, std::vector<std::size_t>, int, bool, bool>(from);
    const DescribedOperator described(domain, name, attributes);
    return described.factory(inputs, outputs, used, constants, threads, sizes_vary, deterministic);
}

[[maybe_unused]] const bool described_added = [] {
    add_recipe_kind(kDescribed, nullptr, &described_factory);
    return true;
}();

}  // namespace

const NodeSpec::Input& NodeSpec::input(std::size_t position) const {
    if (!has_input(position)) {
        throw Unsupported("an operand is absent");
    }
    return *inputs[position];
}

const std::vector<std::int64_t>& NodeSpec::elements(std::size_t position) const {
    const Input& found = input(position);
    if (!found.read) {
        throw NativeError("GRAPHKIT_KERNEL_READING does not name operand " + std::to_string(position));
    }
    if (!found.elements) {
        throw Unsupported("the elements of " + found.tensor.name + " are not known");
    }
    return *found.elements;
}

bool NodeSpec::is_constant(std::size_t position) const {
    return std::find(constants.begin(), constants.end(), position) != constants.end();
}

bool NodeSpec::has_attribute(const std::string& name) const {
    return given(*this, name).has_value();
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

OperatorKernel::OperatorKernel(const char* domain, const char* name, MakeKernel make, ReadPositions reads) {
    if (!makers().try_emplace({domain, name}, Maker{make, std::move(reads)}).second) {
        second_makers().emplace_back(domain, name);
    }
}

GRAPHKIT_BINDINGS(operator_kernels, "sized_kernels") {
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
        "Return (domain, name) of the operators that DescribedOperator supports.");
    nb::class_<DescribedOperator>(m, "DescribedOperator", "Makes the factories for the nodes of one operator.")
        .def(nb::init<const std::string&, const std::string&, NodeSpec::Attributes>(), "domain"_a, "name"_a,
             "attributes"_a)
        .def("reads", &DescribedOperator::reads, "position"_a,
             "Return whether kernels are made from the elements of the operand at this position.")
        .def("factory", &DescribedOperator::factory, "inputs"_a, "outputs"_a, nb::kw_only(), "used"_a, "constants"_a,
             "threads"_a, "sizes_vary"_a, "deterministic"_a,
             "Return the factory of a node's kernels. Inputs are (name, dtype, elements or None), None if absent. "
             "Outputs are (name, dtype). used: which outputs are used. constants: positions of the inputs that may be "
             "requested packed.");
}

}  // namespace graphkit
