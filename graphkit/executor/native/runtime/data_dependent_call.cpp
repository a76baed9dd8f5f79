// Calls of data-dependent kernels from Python. Guards around the memory detect writes outside of it.
#include <algorithm>
#include <memory>

#include "runtime/array.h"
#include "runtime/bindings.h"
#include "runtime/bytes.h"
#include "runtime/data_dependent.h"

namespace graphkit {
namespace {

constexpr std::size_t kGuardBytes = 4096;
constexpr std::byte kGuard{0x5a};

// Memory between two guards. is_whole() is false if the kernel wrote to a guard.
class Guarded {
  public:
    explicit Guarded(std::size_t bytes) : bytes_(bytes) {
        memory_.reset(new (std::align_val_t{kAlignment}) std::byte[bytes + 2 * kGuardBytes]);
        std::fill_n(memory_.get(), bytes + 2 * kGuardBytes, kGuard);
    }
    std::byte* data() const { return memory_.get() + kGuardBytes; }
    bool is_whole() const {
        const auto untouched = [](const std::byte* from) {
            return std::all_of(from, from + kGuardBytes, [](std::byte b) { return b == kGuard; });
        };
        return untouched(memory_.get()) && untouched(data() + bytes_);
    }

  private:
    struct Free {
        void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{kAlignment}); }
    };
    std::size_t bytes_;
    std::unique_ptr<std::byte, Free> memory_;
};

class GuardedResults final : public RunMemory {
  public:
    GuardedResults(const DataDependentKernel& kernel, std::vector<bool> used)
        : shapes(kernel.outputs().size()), results(kernel.outputs().size()), kernel_(kernel), used_(std::move(used)) {
        used_.resize(results.size(), true);
    }

    void* result(std::size_t output, const Dims& shape) override {
        if (!used_[output]) {
            return nullptr;
        }
        shapes[output] = shape;
        results[output] = std::make_unique<Guarded>(bytes_of(shape, size_of(kernel_.outputs()[output])));
        return results[output]->data();
    }
    std::byte* scratch(std::size_t bytes) override {
        scratch_ = std::make_unique<Guarded>(bytes);
        return scratch_->data();
    }

    void check() const {
        const auto whole = [](const auto& memory) { return !memory || memory->is_whole(); };
        if (!whole(scratch_) || !std::all_of(results.begin(), results.end(), whole)) {
            throw NativeError(kernel_.name() + ": wrote beyond the memory that it asked for");
        }
    }

    std::vector<Dims> shapes;
    std::vector<std::unique_ptr<Guarded>> results;

  private:
    const DataDependentKernel& kernel_;
    std::vector<bool> used_;
    std::unique_ptr<Guarded> scratch_;
};

nb::list call(const DataDependentKernel& kernel, nb::list inputs, std::vector<bool> used) {
    std::vector<Operand> operands(kernel.inputs().size());
    for (std::size_t i = 0; i < std::min(nb::len(inputs), operands.size()); ++i) {
        if (!inputs[i].is_none()) {
            operands[i] = open_operand(inputs[i], kernel.name().c_str(), kernel.inputs()[i]);
        }
    }
    GuardedResults memory(kernel, std::move(used));
    {
        const WithoutGil no_gil;
        const Team team(kernel.threads());
        kernel.run(operands, memory);
        memory.check();
    }
    nb::list made;
    const nb::object empty = nb::module_::import_("numpy").attr("empty");
    for (std::size_t i = 0; i < memory.results.size(); ++i) {
        if (!memory.results[i]) {
            made.append(nb::none());
            continue;
        }
        nb::object array = empty(nb::tuple(nb::cast(memory.shapes[i])), name_of(kernel.outputs()[i]));
        const Array place = open_array(array, "result", true);
        copy_bytes(place.data, memory.results[i]->data(), place.bytes);
        made.append(std::move(array));
    }
    return made;
}

}  // namespace

GRAPHKIT_BINDINGS(data_dependent_call) {
    nb::class_<DataDependentKernel>(m, "DataDependentKernel", "Computes one operator, and the shapes of its results.")
        .def(
            "__call__", &call, "inputs"_a, "used"_a = std::vector<bool>(),
            nb::sig("def __call__(self, inputs: list[numpy.ndarray | None], used: collections.abc.Sequence[bool] = ()) "
                    "-> list[numpy.ndarray | None]"),
            "Return the results; None for those not `used` (default: all are). ValueError for arrays of other types.")
        .def_prop_ro("threads", &DataDependentKernel::threads)
        .def("__repr__", [](const DataDependentKernel& kernel) { return "<" + kernel.name() + ">"; });
}

}  // namespace graphkit
