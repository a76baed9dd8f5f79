// Makes the kernels of a template's nodes for given sizes, without Python.
#include "runtime/sized_kernels.h"

#include <algorithm>

#include "runtime/recipe.h"

namespace graphkit {

const Dims& present(const Shapes& shapes, std::size_t position) {
    if (position >= shapes.size() || !shapes[position]) {
        throw NativeError("operand " + std::to_string(position) + " is absent");
    }
    return *shapes[position];
}

std::size_t DimsHash::operator()(const Dims& sizes) const {
    std::size_t hash = sizes.size();
    for (const std::int64_t size : sizes) {
        hash = (hash ^ static_cast<std::size_t>(size)) * 0x9E3779B97F4A7C15U;
        hash ^= hash >> 29;
    }
    return hash;
}

Needs::Needs(const Kernel& kernel)
    : inplace(kernel.inplace()),
      packed(kernel.packed_inputs()),
      inputs(kernel.inputs().size()),
      has_scratch(kernel.scratch_bytes() > 0) {
    layouts.reserve(packed.size());
    for (const int input : packed) {
        layouts.push_back(kernel.packed_layout(input));
    }
    optional.reserve(inputs + kernel.outputs().size());
    for (const auto* specs : {&kernel.inputs(), &kernel.outputs()}) {
        for (const TensorSpec& spec : *specs) {
            optional.push_back(spec.optional);
        }
    }
}

bool Needs::are_of(const Kernel& kernel) const {
    const std::size_t outputs = optional.size() - inputs;
    if (kernel.inputs().size() != inputs || kernel.outputs().size() != outputs ||
        (kernel.scratch_bytes() > 0) != has_scratch || kernel.inplace() != inplace ||
        kernel.packed_inputs() != packed) {
        return false;
    }
    for (std::size_t i = 0; i < optional.size(); ++i) {
        const TensorSpec& spec = i < inputs ? kernel.inputs()[i] : kernel.outputs()[i - inputs];
        if (spec.optional != optional[i]) {
            return false;
        }
    }
    for (std::size_t i = 0; i < packed.size(); ++i) {
        if (kernel.packed_layout(packed[i]) != layouts[i]) {
            return false;
        }
    }
    return true;
}

std::uint32_t NeedsTable::number_of(const Kernel& kernel, std::uint32_t likely) {
    if (likely < all_.size() && all_[likely].are_of(kernel)) {
        return likely;
    }
    Needs needs(kernel);
    const auto found = std::find(all_.begin(), all_.end(), needs);
    const auto number = static_cast<std::uint32_t>(found - all_.begin());
    if (found == all_.end()) {
        all_.push_back(std::move(needs));
    }
    return number;
}

SizedStep::SizedStep(nb::object factory, Places mentioned, ShapePlaces inputs, ShapePlaces outputs, std::size_t symbols)
    : factory_(std::move(factory)),
      made_by_(factory_.is_none() ? nullptr : nb::cast<const KernelFactory*>(factory_)),
      mentioned_(std::move(mentioned)),
      mentions_less_(mentioned_.size() < symbols),
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)) {}

SizedKernelPtr SizedStep::made(const Dims& sizes, NeedsTable& table) {
    if (made_by_ == nullptr) {
        return nullptr;
    }
    try {
        Shapes inputs = std::exchange(input_shapes_, {});
        Shapes outputs = std::exchange(output_shapes_, {});
        write_shapes(inputs_, sizes, inputs);
        write_shapes(outputs_, sizes, outputs);
        std::unique_ptr<const Kernel> kernel = made_by_->make(inputs, outputs);
        if (kernel == nullptr) {
            const WithoutGil released;
            kernel = made_by_->make_slowly(inputs, outputs);
        }
        input_shapes_ = std::move(inputs);
        output_shapes_ = std::move(outputs);
        if (kernel == nullptr) {
            return nullptr;
        }
        const Kernel& made = *kernel;
        return sized(std::move(kernel), {}, made, table);
    } catch (const Unsupported&) {
        return nullptr;
    }
}

SizedKernelPtr SizedStep::sized(std::unique_ptr<const Kernel> owned, nb::object object, const Kernel& kernel,
                                NeedsTable& table) {
    needs_ = table.number_of(kernel, needs_);
    return std::make_shared<const SizedKernel>(
        SizedKernel{std::move(owned), std::move(object), &kernel, kernel.scratch_bytes(), needs_});
}

void SizedStep::keep(Dims&& sizes, SizedKernelPtr kernel, std::size_t kept) {
    if (recent_.size() < std::max<std::size_t>(kept, 1)) {
        recent_.push_front({std::move(sizes), std::move(kernel)});
        by_sizes_.insert(recent_.begin());
        return;
    }
    // The nodes of the least recently used kernel are used again.
    auto node = by_sizes_.extract(std::prev(recent_.end()));
    recent_.splice(recent_.begin(), recent_, std::prev(recent_.end()));
    recent_.front() = {std::move(sizes), std::move(kernel)};
    node.value() = recent_.begin();
    by_sizes_.insert(std::move(node));
}

void SizedStep::keep_one(Dims&& sizes, SizedKernelPtr kernel) {
    if (recent_.empty()) {
        recent_.emplace_front();
    }
    recent_.front() = {std::move(sizes), std::move(kernel)};
}

std::vector<Dims> SizedStep::kept() const {
    std::vector<Dims> sizes;
    for (auto cached = recent_.rbegin(); cached != recent_.rend(); ++cached) {
        sizes.push_back(cached->sizes);
    }
    return sizes;
}

GRAPHKIT_BINDINGS(sized_kernels) {
    nb::class_<KernelFactory>(m, "KernelFactory", "Makes the kernels of one node for all sizes.")
        .def(
            "__call__",
            [](const KernelFactory& self, const Shapes& inputs, const Shapes& outputs) {
                std::unique_ptr<Kernel> made = self.make(inputs, outputs);
                if (made == nullptr) {
                    const WithoutGil released;
                    made = self.make_slowly(inputs, outputs);
                }
                if (made != nullptr && records_recipes() && self.recipe() != nullptr) {
                    made->set_recipe(recipe_from_factory(*self.recipe(), inputs, outputs));
                }
                return made.release();
            },
            "inputs"_a, "outputs"_a, nb::rv_policy::take_ownership,
            nb::sig("def __call__(self, inputs: collections.abc.Sequence[tuple[int, ...] | None], outputs: "
                    "collections.abc.Sequence[tuple[int, ...] | None]) -> Kernel | None"),
            "Return the kernel for these shapes; None if there is none.")
        .def_prop_ro(
            "recipe",
            [](const KernelFactory& self) -> std::optional<nb::bytes> {
                const std::string* const recipe = self.recipe();
                return recipe == nullptr ? std::nullopt : std::optional(nb::bytes(recipe->data(), recipe->size()));
            },
            "How the factory was made, for saved programs; None if it was not recorded.");
}

}  // namespace graphkit
