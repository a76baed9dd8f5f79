// Makes the kernels of a template's nodes for given sizes, without Python.
#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <utility>

#include "runtime/bindings.h"
#include "runtime/kernel_factory.h"

namespace graphkit {
namespace {

using Sizes = std::vector<std::int64_t>;
// For each dimension of a shape, its position in the list of sizes.
using Places = std::vector<std::size_t>;
using ShapePlaces = std::vector<std::optional<Places>>;

struct SizesHash {
    std::size_t operator()(const Sizes& sizes) const {
        std::size_t hash = sizes.size();
        for (const std::int64_t size : sizes) {
            hash = (hash ^ static_cast<std::size_t>(size)) * 0x9E3779B97F4A7C15U;
            hash ^= hash >> 29;
        }
        return hash;
    }
};

Dims shape_at(const Places& places, const Sizes& sizes) {
    Dims shape;
    shape.reserve(places.size());
    for (const std::size_t place : places) {
        shape.push_back(sizes.at(place));
    }
    return shape;
}

Shapes shapes_at(const ShapePlaces& all, const Sizes& sizes) {
    Shapes shapes;
    shapes.reserve(all.size());
    for (const auto& places : all) {
        shapes.push_back(places ? std::optional(shape_at(*places, sizes)) : std::nullopt);
    }
    return shapes;
}

// The properties of a kernel that decide the structure of a program. Kernels of one node for different sizes mostly
// share them.
struct Needs {
    std::vector<std::pair<int, int>> inplace;
    std::vector<int> packed;
    std::vector<std::string> layouts;
    bool has_scratch;

    explicit Needs(const Kernel& kernel)
        : inplace(kernel.inplace()), packed(kernel.packed_inputs()), has_scratch(kernel.scratch_bytes() > 0) {
        for (const int input : packed) {
            layouts.push_back(kernel.packed_layout(input));
        }
    }

    bool operator==(const Needs& other) const {
        return inplace == other.inplace && packed == other.packed && layouts == other.layouts &&
               has_scratch == other.has_scratch;
    }
};

template <typename Values>
nb::tuple as_tuple(const Values& values) {
    nb::list items;
    for (const auto& value : values) {
        items.append(nb::cast(value));
    }
    return nb::tuple(items);
}

// A kernel for certain sizes, and its properties that a program needs.
struct SizedKernel {
    nb::object kernel;
    std::size_t scratch_bytes;
    Needs needs;
    nb::tuple need;     // (in-place pairs, packed inputs, whether it needs working memory)
    nb::tuple layouts;  // of the packed inputs

    // `like` is a kernel of the same node, or null. If their needs are equal, both share the tuples.
    SizedKernel(nb::object made, const SizedKernel* like)
        : kernel(std::move(made)),
          scratch_bytes(nb::cast<const Kernel*>(kernel)->scratch_bytes()),
          needs(*nb::cast<const Kernel*>(kernel)) {
        if (like != nullptr && like->needs == needs) {
            need = like->need;
            layouts = like->layouts;
        } else {
            need = nb::make_tuple(as_tuple(needs.inplace), as_tuple(needs.packed), needs.has_scratch);
            layouts = as_tuple(needs.layouts);
        }
    }
};

// Makes the kernels of one node, and caches the most recently used ones.
class SizedStep {
  public:
    // `factory`: a KernelFactory, or None.
    SizedStep(nb::object factory, Places mentioned, ShapePlaces inputs, ShapePlaces outputs)
        : factory_(std::move(factory)),
          made_by_(factory_.is_none() ? nullptr : nb::cast<const KernelFactory*>(factory_)),
          mentioned_(std::move(mentioned)),
          inputs_(std::move(inputs)),
          outputs_(std::move(outputs)) {}

    // Returns the cached kernel, that of the factory or, if the factory makes none, the result of `make`.
    template <typename Make>
    nb::object at(const Sizes& sizes, std::size_t kept, Make make) {
        Sizes key = shape_at(mentioned_, sizes);
        if (const auto found = by_sizes_.find(key); found != by_sizes_.end()) {
            recent_.splice(recent_.begin(), recent_, found->second);
            return recent_.front().second;
        }
        nb::object kernel = made(sizes);
        if (kernel.is_none()) {
            kernel = make();
            // Meanwhile, another thread may have done the same.
            if (by_sizes_.find(key) != by_sizes_.end()) {
                return kernel;
            }
        }
        recent_.emplace_front(key, std::move(kernel));
        by_sizes_.emplace(std::move(key), recent_.begin());
        if (recent_.size() > kept) {
            by_sizes_.erase(recent_.back().first);
            recent_.pop_back();
        }
        return recent_.front().second;
    }

    // Returns the sizes of the cached kernels, least recently used first.
    std::vector<Sizes> kept() const {
        std::vector<Sizes> sizes;
        for (auto kernel = recent_.rbegin(); kernel != recent_.rend(); ++kernel) {
            sizes.push_back(kernel->first);
        }
        return sizes;
    }

  private:
    // Returns the factory's kernel, a SizedKernel; None if there is none.
    nb::object made(const Sizes& sizes) const {
        if (made_by_ == nullptr) {
            return nb::none();
        }
        try {
            std::unique_ptr<Kernel> kernel = made_by_->make(shapes_at(inputs_, sizes), shapes_at(outputs_, sizes));
            if (kernel == nullptr) {
                return nb::none();
            }
            const SizedKernel* like = nullptr;
            if (!recent_.empty() && !recent_.front().second.is_none()) {
                like = nb::cast<const SizedKernel*>(recent_.front().second);
            }
            return nb::cast(SizedKernel(nb::cast(kernel.release(), nb::rv_policy::take_ownership), like));
        } catch (const Unsupported&) {
            return nb::none();
        }
    }

    using Recent = std::list<std::pair<Sizes, nb::object>>;

    nb::object factory_;  // owns made_by_
    const KernelFactory* made_by_;
    Places mentioned_;
    ShapePlaces inputs_, outputs_;
    Recent recent_;  // most recently used first
    std::unordered_map<Sizes, Recent::iterator, SizesHash> by_sizes_;
};

class SizedKernels {
  public:
    explicit SizedKernels(std::size_t kept) : kept_(kept) {}

    void add(nb::object factory, Places mentioned, ShapePlaces inputs, ShapePlaces outputs) {
        steps_.emplace_back(std::move(factory), std::move(mentioned), std::move(inputs), std::move(outputs));
    }

    nb::list at(const Sizes& sizes, const nb::callable& make) {
        nb::list kernels;
        for (std::size_t number = 0; number < steps_.size(); ++number) {
            kernels.append(steps_[number].at(sizes, kept_, [&] { return make(number); }));
        }
        return kernels;
    }

    std::vector<std::vector<Sizes>> kept() const {
        std::vector<std::vector<Sizes>> all;
        for (const SizedStep& step : steps_) {
            all.push_back(step.kept());
        }
        return all;
    }

  private:
    std::size_t kept_;
    std::vector<SizedStep> steps_;
};

}  // namespace

const Dims& present(const Shapes& shapes, std::size_t position) {
    if (position >= shapes.size() || !shapes[position]) {
        throw NativeError("operand " + std::to_string(position) + " is absent");
    }
    return *shapes[position];
}

GRAPHKIT_BINDINGS(sized_kernels) {
    nb::class_<KernelFactory>(m, "KernelFactory", "Makes the kernels of one node for all sizes.")
        .def(
            "__call__",
            [](const KernelFactory& self, const Shapes& inputs, const Shapes& outputs) {
                return self.make(inputs, outputs).release();
            },
            "inputs"_a, "outputs"_a, nb::rv_policy::take_ownership,
            nb::sig("def __call__(self, inputs: collections.abc.Sequence[tuple[int, ...] | None], outputs: "
                    "collections.abc.Sequence[tuple[int, ...] | None]) -> Kernel | None"),
            "Return the kernel for these shapes; None if there is none.");
    nb::class_<SizedKernel>(m, "SizedKernel", "A kernel for certain sizes, and its properties that a program needs.")
        .def(
            "__init__",
            [](SizedKernel* self, nb::object kernel) { new (self) SizedKernel(std::move(kernel), nullptr); },
            "kernel"_a)
        .def_ro("kernel", &SizedKernel::kernel, nb::sig("def kernel(self) -> Kernel"))
        .def_ro("need", &SizedKernel::need,
                nb::sig("def need(self) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...], bool]"),
                "Pairs (input, output) that may share memory, the packed inputs, and whether it needs working memory.")
        .def_ro("scratch_bytes", &SizedKernel::scratch_bytes)
        .def_ro("layouts", &SizedKernel::layouts, nb::sig("def layouts(self) -> tuple[str, ...]"),
                "The layout of each packed input.");
    nb::class_<SizedKernels>(
        m, "SizedKernels",
        "The kernels of the nodes of a graph for given sizes. The most recently used ones are cached.")
        .def(nb::init<std::size_t>(), "kept"_a, "kept: number of kernels that are kept for each node.")
        .def("add", &SizedKernels::add, "factory"_a.none(), "mentioned"_a, "inputs"_a, "outputs"_a,
             nb::sig("def add(self, factory: KernelFactory | None, mentioned: collections.abc.Sequence[int], inputs: "
                     "collections.abc.Sequence[tuple[int, ...] | None], outputs: "
                     "collections.abc.Sequence[tuple[int, ...] | None]) -> None"),
             "Add a node. Its shapes are positions in a list of sizes; equal sizes at `mentioned` mean equal kernels.")
        .def("at", &SizedKernels::at, "sizes"_a, "make"_a,
             nb::sig("def at(self, sizes: collections.abc.Sequence[int], make: collections.abc.Callable[[int], "
                     "SizedKernel | None]) -> list[SizedKernel | None]"),
             "Return the kernel of each node. For a node whose factory makes none, it is the result of make(number), "
             "where the nodes are numbered in the order of `add`.")
        .def("kept", &SizedKernels::kept,
             "Return, for each node, the sizes at `mentioned` of the cached kernels, least recently used first.");
}

}  // namespace graphkit
