#include "c_interface/sized_template.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <stdexcept>

#include "c_interface/saved_program.h"
#include "runtime/make_factory.h"
#include "runtime/recipe.h"

namespace graphkit {
namespace {

// Programs that are kept for sizes that occur again.
constexpr std::size_t kKept = 16;

SizeBinding binding_of(const SavedTemplate& saved) {
    std::vector<SizeTable::Instruction> instructions;
    for (const auto& [operation, a, b] : saved.instructions) {
        if (operation > static_cast<std::uint64_t>(SizeTable::Operation::broadcast)) {
            throw NativeError("sizes have an unknown operation");
        }
        instructions.push_back({static_cast<SizeTable::Operation>(operation), a, b});
    }
    SizeTable table(saved.symbols, std::move(instructions), saved.table);
    return SizeBinding({std::move(table), saved.sources, saved.inputs, saved.equal, saved.nonnegative});
}

SavedPorts ports_at(const SavedPorts& ports, const std::vector<Places>& shapes, const Dims& sizes) {
    SavedPorts found = ports;
    for (std::size_t i = 0; i < ports.size(); ++i) {
        found[i].shape = sizes_at(shapes[i], sizes);
        try {
            found[i].bytes = checked_bytes(found[i].shape, found[i].type);
        } catch (const NativeError&) {
            throw std::invalid_argument("'" + ports[i].name + "' would have the shape " + to_string(found[i].shape));
        }
    }
    return found;
}

// The shapes of the inputs, for an error.
std::string described(const SavedPorts& ports, ShapeList inputs) {
    std::string given;
    for (std::size_t i = 0; i < ports.size(); ++i) {
        const Dims shape(inputs[i], inputs[i] + ports[i].shape.size());
        given += (i > 0 ? ", " : "") + ports[i].name + " " + to_string(shape);
    }
    return given;
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
    std::vector<std::vector<std::int64_t>> values;
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
      binding_(binding_of(saved_)) {
    check();
    std::vector<MemoryRequest> requests;
    for (const SavedRequest& request : saved_.requests) {
        requests.push_back({request.first, request.last, {}});
        blocks_.push_back(request.size);
    }
    requests_.emplace(std::move(requests));
    for (const SavedFactory& factory : saved_.factories) {
        factories_.push_back(make_factory(factory.recipe));
    }
}

SizedTemplate::~SizedTemplate() = default;

void SizedTemplate::check() const {
    const std::size_t count = binding_.table().size();
    const auto known = [&](std::size_t place) { return place < count; };
    const auto all_known = [&](const Places& places) { return std::all_of(places.begin(), places.end(), known); };
    require(saved_.inputs.size() == inputs_.size() && saved_.outputs.size() == outputs_.size(),
            "another number of inputs or outputs");
    for (const auto* side : {&saved_.inputs, &saved_.outputs}) {
        const SavedPorts& ports = side == &saved_.inputs ? inputs_ : outputs_;
        for (std::size_t i = 0; i < ports.size(); ++i) {
            require(all_known((*side)[i]) && (*side)[i].size() == ports[i].shape.size(), "a port of another rank");
        }
    }
    require(binding_.has_sources(), "a size without an axis");
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
    Shapes shapes;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
        shapes.emplace_back(Dims(inputs[i], inputs[i] + inputs_[i].shape.size()));
        if (std::any_of(shapes[i]->begin(), shapes[i]->end(), [](std::int64_t size) { return size < 0; })) {
            throw std::invalid_argument("input '" + inputs_[i].name + "' has a negative size");
        }
    }
    const Dims sizes = binding_.sizes(binding_.symbols_of(shapes).value());
    if (const auto other = binding_.misfit(shapes, sizes)) {
        throw std::invalid_argument("input '" + inputs_[*other].name + "' must be " +
                                    to_string(sizes_at(saved_.inputs[*other], sizes)) + " to fit the other inputs");
    }
    binding_.require_conditions(sizes);
    return sizes;
}

std::shared_ptr<SavedProgram> SizedTemplate::at(ShapeList inputs) {
    try {
        const Dims all = sizes(inputs);
        const std::lock_guard lock(mutex_);
        const auto found = std::find_if(recent_.begin(), recent_.end(), [&](const auto& e) { return e.first == all; });
        if (found != recent_.end()) {
            recent_.splice(recent_.begin(), recent_, found);
        } else {
            recent_.emplace_front(all, bound(all));
            if (recent_.size() > kKept) {
                recent_.pop_back();
                std::erase_if(packed_, [](const auto& entry) { return entry.second.expired(); });
            }
        }
        const std::shared_ptr<Bound>& kept = recent_.front().second;
        return {kept, kept->program.get()};
    } catch (const BadSizes& error) {
        throw std::invalid_argument(std::string("the network cannot compute inputs of these shapes: ") + error.what() +
                                    "; given: " + described(inputs_, inputs));
    }
}

// Returns the kernel of each factory that a step uses.
Kernels SizedTemplate::kernels_at(const Dims& sizes) const {
    Kernels kernels(saved_.factories.size());
    for (const SizedSavedStep& step : saved_.steps) {
        std::unique_ptr<Kernel>& kernel = kernels[step.factory];
        if (kernel != nullptr) {
            continue;
        }
        const SavedFactory& factory = saved_.factories[step.factory];
        try {
            kernel = make_checked_kernel(*factories_[step.factory], shapes_at(factory.inputs, sizes),
                                         shapes_at(factory.outputs, sizes));
        } catch (const Unsupported&) {
            kernel = nullptr;
        } catch (const BadRecipe& error) {
            throw std::invalid_argument("step '" + step.name + "': " + error.what());
        } catch (const std::logic_error& error) {  // of a damaged recipe, such as an axis that does not exist
            throw std::invalid_argument("step '" + step.name + "': " + error.what());
        }
        if (kernel == nullptr) {
            throw std::invalid_argument("step '" + step.name +
                                        "' has no kernel for these sizes: save a program for them");
        }
    }
    return kernels;
}

std::shared_ptr<SizedTemplate::Bound> SizedTemplate::bound(const Dims& sizes) {
    auto made = std::make_shared<Bound>();
    made->kernels = kernels_at(sizes);
    SavedPorts inputs = ports_at(inputs_, saved_.inputs, sizes);
    SavedPorts outputs = ports_at(outputs_, saved_.outputs, sizes);
    SavedPart part;
    for (const auto* side : {&inputs, &outputs}) {
        for (const SavedPort& port : *side) {
            part.slices.push_back({0, 0, port.bytes});
        }
        if (side == &inputs && random_ != nullptr) {
            part.slices.push_back({0, 0, kRandomStateBytes});
        }
    }
    const ArenaLayout layout = layout_at(sizes, made->kernels);
    part.arena_bytes = static_cast<std::uint64_t>(layout.arena_bytes);
    for (const std::uint64_t constant : saved_.constants) {
        made->constants.push_back(constants_[constant]);
    }
    for (const auto& [elements, type] : saved_.values) {
        const SizeElements value{elements, element_type(type)};
        made->values.push_back(value.at(sizes));
        made->constants.emplace_back(reinterpret_cast<const char*>(made->values.back().data()), value.bytes());
    }
    for (const SizedSavedStep& step : saved_.steps) {
        part.steps.push_back(step_of(step, layout, *made));
    }
    const SharedParts shared{made->constants, made->kernels, random_, threads_};
    made->program =
        std::make_unique<SavedProgram>(std::move(inputs), std::move(outputs), std::vector{std::move(part)}, shared);
    return made;
}

ArenaLayout SizedTemplate::layout_at(const Dims& sizes, const Kernels& kernels) const {
    const std::vector<std::int64_t> bytes = block_bytes(
        blocks_, sizes, [&](std::size_t step) { return kernels[saved_.steps[step].factory]->scratch_bytes(); });
    std::uint64_t total = 0;
    for (const std::int64_t block : bytes) {
        const auto size = static_cast<std::uint64_t>(block);
        if (size > kMostBytes || (total += size) > kMostBytes) {
            throw std::invalid_argument("the program would need too much memory for these sizes");
        }
    }
    return requests_->lay_out(bytes);
}

SavedStep SizedTemplate::step_of(const SizedSavedStep& given, const ArenaLayout& layout, Bound& bound) {
    const Kernel& kernel = *bound.kernels[given.factory];
    const auto placed = [&](const Location& at) {
        return at.external == Location::kArena
                   ? Location{Location::kArena, layout.offsets[static_cast<std::size_t>(at.offset)]}
                   : at;
    };
    SavedStep step;
    step.name = given.name;
    step.kernel = given.factory;
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
