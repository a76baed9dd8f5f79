#include "runtime/array.h"
#include "runtime/array_queue.h"
#include "runtime/bound_engine.h"
#include "runtime/bound_program.h"
#include "runtime/bytes.h"
#include "runtime/kernel_call.h"
#include "runtime/not_finite.h"
#include "runtime/strided.h"

namespace graphkit {
namespace {

struct BoundArrayState {
    ArrayStatePtr state;
};

struct BoundArrayQueue {
    explicit BoundArrayQueue(nb::object owner)
        : engine(std::move(owner)),
          numbers(nb::cast<BoundEngine&>(engine).numbers),
          queue(nb::cast<BoundEngine&>(engine).engine) {}
    nb::object engine;
    std::shared_ptr<Numbers> numbers;
    ArrayQueue queue;
};

struct BoundArrayTask {
    BoundArrayTask(nb::object owner, const std::vector<int>& externals, nb::list arrays)
        : program(std::move(owner)), kept(arrays), task(make(externals)) {}

    std::shared_ptr<ArrayTask> make(const std::vector<int>& externals) const {
        auto* const found = nb::cast<BoundProgram*>(program);
        found->complete();
        std::vector<ArrayTask::External> fixed;
        for (auto& [external, elements] : found->shape_values) {
            fixed.push_back({external, elements.data()});
        }
        for (std::size_t i = 0; i < externals.size(); ++i) {
            fixed.push_back({externals[i], open_array(kept[i], "fixed", false).data});
        }
        return std::make_shared<ArrayTask>(*found, std::move(fixed), found->arena_bytes());
    }

    nb::object program;
    nb::list kept;
    std::shared_ptr<ArrayTask> task;
};

// A context manager. Python cannot be interrupted between the calls of its methods and the `with` statement.
struct BoundBatch {
    BoundBatch(nb::object owner, std::string label) : queue(std::move(owner)), name(std::move(label)) {}

    void enter() { began = nb::cast<BoundArrayQueue&>(queue).queue.begin_batch(name); }
    void exit() {
        if (std::exchange(began, false)) {
            nb::cast<BoundArrayQueue&>(queue).queue.end_batch();
        }
    }

    nb::object queue;
    std::string name;
    bool began = false;
};

ArrayStates states_of(nb::handle sequence) {
    ArrayStates found;
    for (nb::handle item : nb::iter(sequence)) {
        found.push_back(nb::cast<const BoundArrayState&>(item).state);
    }
    return found;
}

// The last `written` of the arrays are written.
void push_task(BoundArrayQueue& self, std::string name, nb::handle task, nb::list arrays, nb::handle reads,
               nb::handle writes, std::size_t written) {
    orphans().drop();
    std::vector<void*> externals;
    const std::size_t count = nb::len(arrays);
    externals.reserve(count);
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const nb::handle array = arrays[i];
        const bool is_written = i + written >= count;
        externals.push_back(nullptr);
        if (!array.is_none()) {
            const Array opened = open_array(array, "operand", is_written);
            externals.back() = opened.data;
            bytes += is_written ? opened.bytes : 0;
        }
    }
    const std::shared_ptr<ArrayTask> run = nb::cast<const BoundArrayTask&>(task).task;
    self.queue.push(
        std::move(name),
        [run, externals = std::move(externals), arenas = self.queue.arenas(), held = keep(arrays), owner = keep(task)] {
            run->run(externals, *arenas);
        },
        states_of(reads), states_of(writes), Runner::any, bytes);
}

void push_kernel(BoundArrayQueue& self, std::string name, nb::handle kernel, nb::list inputs, nb::list outputs,
                 nb::handle reads, nb::handle writes) {
    orphans().drop();
    const auto& used = nb::cast<const Kernel&>(kernel);
    std::size_t bytes = 0;
    for (const TensorSpec& output : used.outputs()) {
        bytes += bytes_of(output.shape, size_of(output.type));
    }
    self.queue.push(
        std::move(name),
        [call = open_call(used, inputs, outputs), owner = keep(kernel), in = keep(inputs), out = keep(outputs)] {
            call.run();
        },
        states_of(reads), states_of(writes), Runner::any, bytes);
}

void push_copy(BoundArrayQueue& self, std::string name, nb::handle source, nb::handle target, nb::handle reads,
               nb::handle writes) {
    orphans().drop();
    const StridedArray from = open_strided(source, "source", false), to = open_strided(target, "target", true);
    if (from.shape != to.shape || from.item != to.item) {
        throw nb::value_error("'source' and 'target' must have the same shape and element size");
    }
    self.queue.push(
        std::move(name), [from, to, source = keep(source), target = keep(target)] { copy_strided(from, to); },
        states_of(reads), states_of(writes), Runner::any, bytes_of(to.shape, to.item));
}

void push_copies(BoundArrayQueue& self, const std::string& name, nb::list copies) {
    for (nb::handle copy : copies) {
        const auto [source, target, reads, writes] =
            nb::cast<std::tuple<nb::handle, nb::handle, nb::handle, nb::handle>>(copy);
        push_copy(self, name, source, target, reads, writes);
    }
}

void push_call(BoundArrayQueue& self, std::string name, nb::callable function, nb::dict raised, nb::handle reads,
               nb::handle writes) {
    orphans().drop();
    self.queue.push(std::move(name), PythonWork{keep(function), keep(raised), self.numbers, false}, states_of(reads),
                    states_of(writes), Runner::worker, 0);
}

// Like `report`, with the class of the native error.
nb::object report_array(const std::shared_ptr<const Failure>& failure) {
    if (failure == nullptr) {
        orphans().drop();
        return nb::none();
    }
    const nb::module_ native = nb::module_::import_("graphkit._native");
    const auto raised = [&](const char* kind, const std::exception& error) {
        return nb::make_tuple(native.attr(kind)(error.what()), failure->operation);
    };
    try {
        std::rethrow_exception(failure->error);
    } catch (const NoMemory& error) {
        return raised("NoMemory", error);
    } catch (const std::bad_alloc& error) {
        return raised("NoMemory", error);
    } catch (const NotFinite& error) {
        return raised("NotFinite", error);
    } catch (...) {
        return report(failure);
    }
}

nb::object wait_array(BoundArrayQueue& self, const BoundArrayState& state, bool exclusive) {
    std::shared_ptr<const Failure> failure;
    self.queue.flush();
    const ArrayStatePtr held = state.state;
    const VariablePtr variable = self.queue.variable_of(*held);
    if (!exclusive && self.queue.is_readable(*held, variable)) {
        orphans().drop();
        return nb::none();
    }
    {
        const WithoutGil no_gil;
        failure = self.queue.wait(held, variable, exclusive, poll_signals);
    }
    return report_array(failure);
}

nb::object wait_all_arrays(BoundArrayQueue& self) {
    std::shared_ptr<const Failure> failure;
    self.queue.flush();
    {
        const WithoutGil no_gil;
        failure = self.queue.wait_all(poll_signals);
    }
    return report_array(failure);
}

}  // namespace

GRAPHKIT_BINDINGS(array_queue, "engine", "program", "kernel_call") {
    nb::class_<BoundArrayState>(m, "ArrayState", "The state of an array's memory: pending operations, and a failure.");

    nb::class_<BoundArrayTask>(m, "ArrayTask", "A program without Python steps, which an ArrayQueue runs.")
        .def(nb::init<nb::object, const std::vector<int>&, nb::list>(), "program"_a, "externals"_a, "arrays"_a,
             nb::sig("def __init__(self, program: Program, externals: collections.abc.Sequence[int], arrays: "
                     "list[numpy.ndarray]) -> None"),
             "externals: the external memory of constants, whose arrays are `arrays`.");

    nb::class_<BoundBatch>(m, "ArrayBatch", "Context manager: gathers the operations that this thread pushes.")
        .def("__enter__", &BoundBatch::enter)
        .def(
            "__exit__", [](BoundBatch& self, nb::args) { self.exit(); },
            nb::sig("def __exit__(self, *args: object) -> None"));

    nb::class_<BoundArrayQueue>(m, "ArrayQueue", "Pushes operations on arrays to an engine.")
        .def(nb::init<nb::object>(), "engine"_a)
        .def("state", [](BoundArrayQueue& self) { return BoundArrayState{self.queue.state()}; })
        .def(
            "push_task", &push_task, "name"_a, "task"_a, "arrays"_a, "reads"_a, "writes"_a, "written"_a,
            nb::sig("def push_task(self, name: str, task: ArrayTask, arrays: list[numpy.ndarray | None], reads: "
                    "collections.abc.Sequence[ArrayState], writes: collections.abc.Sequence[ArrayState], written: int) "
                    "-> None"),
            "Run a task on its inputs and results, the last `written` arrays.")
        .def("push_kernel", &push_kernel, "name"_a, "kernel"_a, "inputs"_a, "outputs"_a, "reads"_a, "writes"_a,
             nb::sig("def push_kernel(self, name: str, kernel: Kernel, inputs: list[numpy.ndarray], outputs: "
                     "list[numpy.ndarray], reads: collections.abc.Sequence[ArrayState], writes: "
                     "collections.abc.Sequence[ArrayState]) -> None"),
             "Run a kernel. The caller must not change the lists afterwards.")
        .def("push_copy", &push_copy, "name"_a, "source"_a, "target"_a, "reads"_a, "writes"_a,
             nb::sig("def push_copy(self, name: str, source: numpy.ndarray, target: numpy.ndarray, reads: "
                     "collections.abc.Sequence[ArrayState], writes: collections.abc.Sequence[ArrayState]) -> None"),
             "Copy the elements of an array of any strides to another one.")
        .def("push_copies", &push_copies, "name"_a, "copies"_a,
             nb::sig("def push_copies(self, name: str, copies: list[tuple[numpy.ndarray, numpy.ndarray, "
                     "collections.abc.Sequence[ArrayState], collections.abc.Sequence[ArrayState]]]) -> None"),
             "Like push_copy, for each (source, target, reads, writes).")
        .def("push_call", &push_call, "name"_a, "function"_a, "raised"_a, "reads"_a, "writes"_a,
             nb::sig("def push_call(self, name: str, function: collections.abc.Callable[[], object], raised: "
                     "dict[int, BaseException], reads: collections.abc.Sequence[ArrayState], writes: "
                     "collections.abc.Sequence[ArrayState]) -> None"))
        .def(
            "batch", [](nb::object self, std::string name) { return BoundBatch(std::move(self), std::move(name)); },
            "name"_a, nb::sig("def batch(self, name: str) -> ArrayBatch"))
        .def(
            "flush", [](BoundArrayQueue& self) { self.queue.flush(); }, "Push the operations gathered so far.")
        .def("wait", &wait_array, "state"_a, "exclusive"_a,
             nb::sig("def wait(self, state: ArrayState, exclusive: bool) -> tuple[BaseException | int, str] | None"),
             "Wait for an array. Return None, or (exception or its key in `raised`, name of the failed operation).")
        .def("wait_all", &wait_all_arrays, nb::sig("def wait_all(self) -> tuple[BaseException | int, str] | None"),
             "Wait for all operations pushed so far. Return like `wait`, for the oldest failure not returned yet.");
}

}  // namespace graphkit
