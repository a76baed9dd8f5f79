#include "c_interface/sized_template.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <new>
#include <stdexcept>

#include "c_interface/saved_program.h"
#include "runtime/make_factory.h"
#include "runtime/recipe.h"

namespace graphkit {
namespace {

// Programs that are kept for sizes that occur again.
constexpr std::size_t kKept = 16;

SizeTable table_of(const SavedTemplate& saved) {
    std::vector<SizeTable::Instruction> instructions;
    for (const auto& [operation, a, b] : saved.instructions) {
        if (operation > static_cast<std::uint64_t>(SizeTable::Operation::broadcast)) {
            throw NativeError("sizes have an unknown operation");
        }
        instructions.push_back({static_cast<SizeTable::Operation>(operation), a, b});
    }
    return {saved.symbols, std::move(instructions), {saved.table.begin(), saved.table.end()}};
}

Dims dims_at(const SizePlaces& places, const Dims& sizes) {
    Dims found;
    found.reserve(places.size());
    for (const std::uint64_t place : places) {
        found.push_back(sizes[place]);
    }
    return found;
}

Shapes shapes_at(const std::vector<std::optional<SizePlaces>>& all, const Dims& sizes) {
    Shapes shapes;
    for (const auto& places : all) {
        shapes.push_back(places ? std::optional(dims_at(*places, sizes)) : std::nullopt);
    }
    return shapes;
}

SavedPorts ports_at(const SavedPorts& ports, const std::vector<SizePlaces>& shapes, const Dims& sizes) {
    SavedPorts found = ports;
    for (std::size_t i = 0; i < ports.size(); ++i) {
        found[i].shape = dims_at(shapes[i], sizes);
        try {
            found[i].bytes = checked_bytes(found[i].shape, found[i].type);
        } catch (const NativeError&) {
            throw std::invalid_argument("'" + ports[i].name + "' would have the shape " + to_string(found[i].shape));
        }
    }
    return found;
}

template <typename T>
void append(std::string& bytes, std::int64_t element) {
    const auto value = static_cast<T>(element);
    if (static_cast<std::int64_t>(value) != element) {
        throw std::invalid_argument("an element that is computed from sizes does not fit its type");
    }
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string shape_value(const SavedShapeValue& value, const Dims& sizes) {
    const ElementType type = element_type(value.type);
    std::string bytes;
    for (const std::int64_t element : dims_at(value.elements, sizes)) {
        switch (type) {
            case ElementType::i32:
                append<std::int32_t>(bytes, element);
                break;
            case ElementType::i64:
                append<std::int64_t>(bytes, element);
                break;
            default:
                throw NativeError(std::string("elements that are computed from sizes are not ") + name_of(type));
        }
    }
    return bytes;
}

// Says that inputs of these shapes do not fit, and why.
std::invalid_argument misfit(const SavedPorts& ports, ShapeList inputs, const std::string& why) {
    std::string given;
    for (std::size_t i = 0; i < ports.size(); ++i) {
        const Dims shape(inputs[i], inputs[i] + ports[i].shape.size());
        given += (i > 0 ? ", " : "") + ports[i].name + " " + to_string(shape);
    }
    return std::invalid_argument("the network cannot compute inputs of these shapes: " + why + "; given: " + given);
}

void require(bool condition, const char* what) {
    if (!condition) {
        throw NativeError(std::string("the program for any sizes has ") + what);
    }
}

}  // namespace

// A packed constant.
struct SizedTemplate::Packed {
    struct Free {
        void operator()(char* memory) const { std::free(memory); }
    };

    std::unique_ptr<char, Free> memory;
    std::size_t bytes;

    explicit Packed(std::size_t size)
        : memory(static_cast<char*>(std::aligned_alloc(kAlignment, std::max(kAlignment, aligned(size))))), bytes(size) {
        if (memory == nullptr) {
            throw std::bad_alloc();
        }
    }
};

// A program for certain sizes, and what it reads.
struct SizedTemplate::Bound {
    Kernels kernels;
    std::vector<std::string> values;
    std::vector<std::shared_ptr<const Packed>> packed;
    Constants constants;
    std::unique_ptr<SavedProgram> program;
};

SizedTemplate::SizedTemplate(SavedTemplate saved, const SavedPorts& inputs, const SavedPorts& outputs,
                             const Constants& constants, RandomState* random, int threads)
    : saved_(std::move(saved)),
      inputs_(inputs),
      outputs_(outputs),
      constants_(constants),
      random_(random),
      threads_(threads),
      table_(table_of(saved_)) {
    check();
    std::vector<MemoryRequest> requests;
    for (const SavedRequest& request : saved_.requests) {
        requests.push_back({request.first, request.last, {}});
    }
    requests_.emplace(std::move(requests));
    for (const SavedFactory& factory : saved_.factories) {
        factories_.push_back(make_factory(factory.recipe));
    }
}

SizedTemplate::~SizedTemplate() = default;

void SizedTemplate::check() const {
    const std::size_t count = table_.size();
    const auto known = [&](std::uint64_t place) { return place < count; };
    const auto all_known = [&](const SizePlaces& places) { return std::all_of(places.begin(), places.end(), known); };
    require(saved_.inputs.size() == inputs_.size() && saved_.outputs.size() == outputs_.size(),
            "another number of inputs or outputs");
    for (const auto* side : {&saved_.inputs, &saved_.outputs}) {
        const SavedPorts& ports = side == &saved_.inputs ? inputs_ : outputs_;
        for (std::size_t i = 0; i < ports.size(); ++i) {
            require(all_known((*side)[i]) && (*side)[i].size() == ports[i].shape.size(), "a port of another rank");
        }
    }
    require(saved_.sources.size() == saved_.symbols, "a size without an axis");
    for (const auto& [input, axis] : saved_.sources) {
        require(input < inputs_.size() && axis < inputs_[input].shape.size(), "a size of an axis that does not exist");
    }
    for (const auto& [a, b] : saved_.equal) {
        require(known(a) && known(b), "a condition on an unknown size");
    }
    require(all_known(saved_.nonnegative), "a condition on an unknown size");
    for (const SavedFactory& factory : saved_.factories) {
        for (const auto* shapes : {&factory.inputs, &factory.outputs}) {
            for (const auto& places : *shapes) {
                require(!places || all_known(*places), "a kernel of an unknown size");
            }
        }
    }
    for (const SavedRequest& request : saved_.requests) {
        require(request.first <= request.last &&
                    (request.size >= 0 ? known(static_cast<std::uint64_t>(request.size))
                                       : static_cast<std::uint64_t>(-(request.size + 1)) < saved_.steps.size()),
                "a block of an unknown size");
    }
    for (const SavedShapeValue& value : saved_.values) {
        require(all_known(value.elements), "an element that is an unknown size");
    }
    require(std::all_of(saved_.constants.begin(), saved_.constants.end(),
                        [&](std::uint64_t number) { return number < constants_.size(); }),
            "a constant that does not exist");
    check_locations();
}

void SizedTemplate::check_locations() const {
    const std::size_t externals = ports() + saved_.constants.size() + saved_.values.size();
    const auto exists = [&](const Location& at) {
        const auto offset = static_cast<std::uint64_t>(at.offset);
        return at.external == Location::kAbsent ||
               (at.external == Location::kArena && offset < saved_.requests.size()) ||
               (at.external >= 0 && static_cast<std::size_t>(at.external) < externals && at.offset == 0);
    };
    for (const SizedSavedStep& step : saved_.steps) {
        require(step.factory < saved_.factories.size() && exists(step.scratch) && step.scratch.external < 0 &&
                    std::all_of(step.inputs.begin(), step.inputs.end(), exists) &&
                    std::all_of(step.outputs.begin(), step.outputs.end(), exists),
                "a step with memory or a kernel that does not exist");
    }
}

Dims SizedTemplate::sizes(ShapeList inputs) const {
    Dims symbols;
    for (const auto& [input, axis] : saved_.sources) {
        symbols.push_back(inputs[input][axis]);
        if (symbols.back() < 0) {
            throw std::invalid_argument("input '" + inputs_[input].name + "' has a negative size");
        }
    }
    Dims sizes;
    try {
        sizes = table_.values(symbols);
    } catch (const NativeError& error) {
        throw misfit(inputs_, inputs, error.what());
    }
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
        const Dims expected = dims_at(saved_.inputs[i], sizes);
        if (!std::equal(expected.begin(), expected.end(), inputs[i])) {
            throw std::invalid_argument("input '" + inputs_[i].name + "' must be " + to_string(expected) +
                                        " to fit the other inputs");
        }
    }
    for (const auto& [a, b] : saved_.equal) {
        if (sizes[a] != sizes[b]) {
            throw misfit(
                inputs_, inputs,
                "sizes that must be equal are " + std::to_string(sizes[a]) + " and " + std::to_string(sizes[b]));
        }
    }
    for (const std::uint64_t place : saved_.nonnegative) {
        if (sizes[place] < 0) {
            throw misfit(inputs_, inputs, "a size would be negative");
        }
    }
    return sizes;
}

SavedPorts SizedTemplate::inputs(const Dims& sizes) const {
    return ports_at(inputs_, saved_.inputs, sizes);
}

SavedPorts SizedTemplate::outputs(const Dims& sizes) const {
    return ports_at(outputs_, saved_.outputs, sizes);
}

std::shared_ptr<SavedProgram> SizedTemplate::at(const Dims& sizes) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(recent_.begin(), recent_.end(), [&](const auto& e) { return e.first == sizes; });
    if (found != recent_.end()) {
        recent_.splice(recent_.begin(), recent_, found);
    } else {
        recent_.emplace_front(sizes, bound(sizes));
        if (recent_.size() > kKept) {
            recent_.pop_back();
            std::erase_if(packed_, [](const auto& entry) { return entry.second.expired(); });
        }
    }
    const std::shared_ptr<Bound>& kept = recent_.front().second;
    return {kept, kept->program.get()};
}

std::shared_ptr<SizedTemplate::Bound> SizedTemplate::bound(const Dims& sizes) {
    auto made = std::make_shared<Bound>();
    for (const SizedSavedStep& step : saved_.steps) {
        const SavedFactory& factory = saved_.factories[step.factory];
        std::unique_ptr<Kernel> kernel;
        try {
            kernel = make_checked_kernel(*factories_[step.factory], shapes_at(factory.inputs, sizes),
                                         shapes_at(factory.outputs, sizes));
        } catch (const Unsupported&) {
            kernel = nullptr;
        } catch (const BadRecipe& error) {
            throw std::invalid_argument("step '" + step.name + "': " + error.what());
        }
        if (kernel == nullptr) {
            throw std::invalid_argument("step '" + step.name +
                                        "' has no kernel for these sizes: save a program for them");
        }
        made->kernels.push_back(std::move(kernel));
    }
    SavedMemory memory;
    SavedPart part;
    for (const SavedPort& port : inputs(sizes)) {
        memory.inputs.push_back(port.bytes);
    }
    for (const SavedPort& port : outputs(sizes)) {
        memory.outputs.push_back(port.bytes);
    }
    for (const auto* side : {&memory.inputs, &memory.outputs}) {
        for (const std::size_t bytes : *side) {
            part.slices.push_back({0, 0, bytes});
        }
        if (side == &memory.inputs && random_ != nullptr) {
            part.slices.push_back({0, 0, kRandomStateBytes});
        }
    }
    const ArenaLayout layout = requests_->lay_out(request_bytes(sizes, made->kernels));
    part.arena_bytes = static_cast<std::uint64_t>(layout.arena_bytes);
    for (const std::uint64_t constant : saved_.constants) {
        made->constants.push_back(constants_[constant]);
    }
    for (const SavedShapeValue& value : saved_.values) {
        made->values.push_back(shape_value(value, sizes));
    }
    for (const std::string& value : made->values) {
        made->constants.emplace_back(value.data(), value.size());
    }
    for (std::size_t i = 0; i < saved_.steps.size(); ++i) {
        part.steps.push_back(step_of(i, layout, *made));
    }
    const SharedParts shared{made->constants, made->kernels, random_, threads_};
    made->program = std::make_unique<SavedProgram>(inputs(sizes), outputs(sizes), std::vector{std::move(part)}, shared);
    return made;
}

std::vector<std::int64_t> SizedTemplate::request_bytes(const Dims& sizes, const Kernels& kernels) const {
    std::vector<std::int64_t> bytes;
    std::uint64_t total = 0;
    for (const SavedRequest& request : saved_.requests) {
        std::uint64_t size = 0;
        if (request.size >= 0) {
            size = static_cast<std::uint64_t>(sizes[static_cast<std::size_t>(request.size)]);
        } else {
            size = kernels[static_cast<std::size_t>(-(request.size + 1))]->scratch_bytes();
        }
        if (size > kMostBytes || (total += size) > kMostBytes) {
            throw std::invalid_argument("the program would need too much memory for these sizes");
        }
        bytes.push_back(static_cast<std::int64_t>(size));
    }
    return bytes;
}

SavedStep SizedTemplate::step_of(std::size_t number, const ArenaLayout& layout, Bound& bound) {
    const SizedSavedStep& given = saved_.steps[number];
    const Kernel& kernel = *bound.kernels[number];
    const auto placed = [&](const Location& at) {
        return at.external == Location::kArena
                   ? Location{Location::kArena, layout.offsets[static_cast<std::size_t>(at.offset)]}
                   : at;
    };
    SavedStep step;
    step.name = given.name;
    step.kernel = number;
    // A kernel may read fewer operands than its node has, such as a Split without the sizes of its parts.
    for (std::size_t i = 0; i < kernel.inputs().size(); ++i) {
        step.inputs.push_back(i < given.inputs.size() ? placed(constant_of(given, i, kernel, bound)) : Location{});
        const std::vector<int> packed = kernel.packed_inputs();
        const bool is_packed = std::find(packed.begin(), packed.end(), static_cast<int>(i)) != packed.end();
        step.layouts.push_back(is_packed ? kernel.packed_layout(static_cast<int>(i)) : "");
    }
    for (std::size_t i = 0; i < kernel.outputs().size(); ++i) {
        step.outputs.push_back(i < given.outputs.size() ? placed(given.outputs[i]) : Location{});
    }
    if (kernel.scratch_bytes() > 0) {
        step.scratch = placed(given.scratch);
    }
    return step;
}

// Returns the location of an input: that of a packed copy, if the kernel reads a packed constant.
Location SizedTemplate::constant_of(const SizedSavedStep& step, std::size_t input, const Kernel& kernel, Bound& bound) {
    const Location& at = step.inputs[input];
    const auto first = static_cast<std::int64_t>(ports());
    const std::int64_t constant = at.external - first;
    const std::vector<int> packed_inputs = kernel.packed_inputs();
    const int position = static_cast<int>(input);
    if (constant < 0 || constant >= static_cast<std::int64_t>(saved_.constants.size()) ||
        std::find(packed_inputs.begin(), packed_inputs.end(), position) == packed_inputs.end()) {
        return at;
    }
    bound.packed.push_back(packed(saved_.constants[static_cast<std::size_t>(constant)], kernel, position));
    bound.constants.emplace_back(bound.packed.back()->memory.get(), bound.packed.back()->bytes);
    return {static_cast<int>(first + static_cast<std::int64_t>(bound.constants.size()) - 1), 0};
}

std::shared_ptr<const SizedTemplate::Packed> SizedTemplate::packed(std::uint64_t constant, const Kernel& kernel,
                                                                   int input) {
    auto& known = packed_[{constant, kernel.packed_layout(input)}];
    if (auto copy = known.lock()) {
        require(copy->bytes == kernel.packed_bytes(input), "packed constants of one layout with different sizes");
        return copy;
    }
    const auto position = static_cast<std::size_t>(input);
    if (position >= kernel.inputs().size()) {
        throw NativeError("a packed input does not exist");
    }
    const TensorSpec& spec = kernel.inputs()[position];
    const auto& [data, bytes] = constants_[constant];
    if (checked_bytes(spec.shape, spec.type) > bytes) {
        throw NativeError("'" + spec.name + "' is larger than its constant");
    }
    auto made = std::make_shared<Packed>(kernel.packed_bytes(input));
    kernel.pack(input, data, made->memory.get());
    known = made;
    return made;
}

}  // namespace graphkit
