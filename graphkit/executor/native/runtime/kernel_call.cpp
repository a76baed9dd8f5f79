#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "runtime/array.h"
#include "runtime/bindings.h"
#include "runtime/kernel_call.h"

namespace graphkit {
namespace {

// Bytes of the guard behind the working memory of a call. In a program, a write there would destroy another value.
constexpr std::size_t kGuardBytes = 1 << 20;
constexpr std::byte kGuard{0x5a};

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};

// Returns the items of a sequence, extended with None to at least `wanted`.
std::vector<nb::object> items_of(nb::handle sequence, std::size_t wanted) {
    std::vector<nb::object> items;
    for (nb::handle item : nb::iter(sequence)) {
        items.push_back(nb::borrow(item));
    }
    while (items.size() < wanted) {
        items.push_back(nb::none());
    }
    return items;
}

}  // namespace

KernelCall open_call(const Kernel& kernel, nb::handle inputs, nb::handle outputs) {
    const std::size_t in_count = kernel.inputs().size();
    const std::size_t out_count = kernel.outputs().size();
    const auto in = items_of(inputs, in_count);
    const auto out = items_of(outputs, out_count);
    std::vector<const void*> sources(in_count);
    std::vector<void*> targets(out_count);
    const auto require = [&](const TensorSpec& spec) {
        if (!spec.optional) {
            throw nb::value_error((kernel.describe() + ": '" + spec.name + "' is missing").c_str());
        }
    };
    const std::vector<int> packed_inputs = kernel.packed_inputs();
    const auto is_packed = [&](std::size_t i) {
        return std::find(packed_inputs.begin(), packed_inputs.end(), static_cast<int>(i)) != packed_inputs.end();
    };
    for (std::size_t i = 0; i < in_count; ++i) {
        if (in[i].is_none()) {
            require(kernel.inputs()[i]);
        } else if (is_packed(i)) {
            const Array packed = open_array(in[i], "packed", false);
            if (packed.bytes != kernel.packed_bytes(static_cast<int>(i))) {
                throw nb::value_error((kernel.describe() + ": the packed operand has another size").c_str());
            }
            sources[i] = packed.data;
        } else {
            sources[i] = open_array(in[i], kernel.inputs()[i], kernel, false);
        }
    }
    for (std::size_t i = 0; i < out_count; ++i) {
        if (out[i].is_none()) {
            require(kernel.outputs()[i]);
        } else {
            targets[i] = open_array(out[i], kernel.outputs()[i], kernel, true);
        }
    }
    return {&kernel, std::move(sources), std::move(targets)};
}

void KernelCall::run(bool guarded) const {
    const std::size_t bytes = aligned(kernel->scratch_bytes());
    const std::size_t guard_bytes = guarded ? kGuardBytes : kAlignment;
    const std::unique_ptr<void, Free> scratch(std::aligned_alloc(kAlignment, bytes + guard_bytes));
    if (!scratch) {
        throw std::bad_alloc();
    }
    auto* const memory = static_cast<std::byte*>(scratch.get());
    std::byte* const guard = memory + bytes;
    std::fill_n(guard, guard_bytes, kGuard);
    {
        const Team team(kernel->threads());
        kernel->run(inputs.data(), outputs.data(), memory);
    }
    // If the first byte is kGuard and each byte equals the next one, all are kGuard.
    if (guard[0] != kGuard || std::memcmp(guard, guard + 1, guard_bytes - 1) != 0) {
        throw NativeError(kernel->describe() + " (" + kernel->implementation() + "): wrote beyond the " +
                          std::to_string(bytes) + " bytes of working memory that it asked for");
    }
}

namespace {

void call(const Kernel& kernel, nb::handle inputs, nb::handle outputs) {
    // If a sequence is neither a list nor a tuple, its items may live only as long as the list made from them here.
    const nb::list in(inputs), out(outputs);
    const KernelCall prepared = open_call(kernel, in, out);
    const WithoutGil no_gil;
    prepared.run(true);
}

void pack(const Kernel& kernel, int input, nb::handle plain, nb::handle packed) {
    const std::size_t bytes = kernel.packed_bytes(input);
    const TensorSpec& spec = kernel.inputs()[static_cast<std::size_t>(input)];
    const Array from = open_array(plain, spec.name.c_str(), false);
    if (from.bytes != static_cast<std::size_t>(count(spec.shape)) * size_of(spec.type)) {
        throw nb::value_error((kernel.describe() + ": '" + spec.name + "' has another size").c_str());
    }
    const Array to = open_array(packed, "packed", true);
    if (to.bytes != bytes) {
        throw nb::value_error((kernel.describe() + ": the memory for the packed operand has another size").c_str());
    }
    const WithoutGil no_gil;
    const Team team(kernel.threads());
    kernel.pack(input, from.data, to.data);
}

}  // namespace

GRAPHKIT_BINDINGS(kernel_call) {
    nb::class_<Kernel>(m, "Kernel", "Computes one operator for fixed shapes.")
        .def("__call__", &call, "inputs"_a, "outputs"_a,
             nb::sig("def __call__(self, inputs: collections.abc.Sequence[numpy.ndarray | None], outputs: "
                     "collections.abc.Sequence[numpy.ndarray | None]) -> None"),
             "Write the outputs, without the GIL. Extra arrays are ignored; ValueError for arrays that do not fit.")
        .def("pack", &pack, "input"_a, "plain"_a, "packed"_a,
             nb::sig("def pack(self, input: int, plain: numpy.ndarray, packed: numpy.ndarray) -> None"),
             "Write the packed form of one of `packed_inputs`.")
        .def_prop_ro("packed_inputs", &Kernel::packed_inputs, "The positions of the inputs that must be given packed.")
        .def("packed_bytes", &Kernel::packed_bytes, "input"_a)
        .def("packed_layout", &Kernel::packed_layout, "input"_a)
        .def_prop_ro(
            "optional_inputs",
            [](const Kernel& kernel) {
                std::vector<int> found;
                for (std::size_t i = 0; i < kernel.inputs().size(); ++i) {
                    if (kernel.inputs()[i].optional) {
                        found.push_back(static_cast<int>(i));
                    }
                }
                return found;
            },
            "The positions of the inputs that may be left out.")
        .def_prop_ro("input_count", [](const Kernel& kernel) { return kernel.inputs().size(); })
        .def_prop_ro("output_count", [](const Kernel& kernel) { return kernel.outputs().size(); })
        .def_prop_ro(
            "recipe",
            [](const Kernel& kernel) -> std::optional<RawBytes> {
                return kernel.recipe() == nullptr ? std::nullopt : std::optional(RawBytes{*kernel.recipe()});
            },
            "How the kernel was made, for saved programs; None unless `record_recipes` was on when it was made.")
        .def_prop_ro("inplace", &Kernel::inplace, "(input, output) pairs that may share memory.")
        .def_prop_ro("scratch_bytes", &Kernel::scratch_bytes)
        .def_prop_ro("implementation", &Kernel::implementation)
        .def_prop_ro("threads", &Kernel::threads)
        .def("__repr__", [](const Kernel& kernel) { return std::string("<").append(kernel.describe()).append(">"); });
}

}  // namespace graphkit
