#include "runtime/bound_engine.h"
#include "runtime/kernel_call.h"

namespace graphkit {
namespace {

Variables variables_of(nb::handle sequence) {
    Variables found;
    for (nb::handle item : nb::iter(sequence)) {
        found.push_back(nb::cast<const BoundVariable&>(item).variable);
    }
    return found;
}

void push_python(BoundEngine& self, std::string name, nb::callable function, nb::dict raised, nb::handle reads,
                 nb::handle writes, int priority) {
    orphans().drop();
    self.engine.push(std::move(name), PythonWork{keep(function), keep(raised), self.numbers}, variables_of(reads),
                     variables_of(writes), priority);
}

void push_kernel(BoundEngine& self, std::string name, nb::object kernel, nb::handle inputs, nb::handle outputs,
                 nb::handle reads, nb::handle writes, int priority) {
    orphans().drop();
    const auto& native = nb::cast<const Kernel&>(kernel);
    const nb::list in(inputs), out(outputs);
    std::vector<Kept> kept{keep(kernel)};
    for (const nb::list& list : {in, out}) {
        for (nb::handle array : list) {
            kept.push_back(keep(array));
        }
    }
    self.engine.push(
        std::move(name), [call = open_call(native, in, out), kept = std::move(kept)] { call.run(); },
        variables_of(reads), variables_of(writes), priority);
}

nb::object wait(BoundEngine& self, const BoundVariable& variable, bool exclusive) {
    std::shared_ptr<const Failure> failure;
    {
        const WithoutGil no_gil;
        failure = self.engine.wait(variable.variable, exclusive, poll_signals);
    }
    return report(failure);
}

nb::object wait_all(BoundEngine& self) {
    std::shared_ptr<const Failure> failure;
    {
        const WithoutGil no_gil;
        failure = self.engine.wait_all(poll_signals);
    }
    return report(failure);
}

bool close(BoundEngine& self, double patience) {
    bool ended = false;  // if false, the worker that still runs keeps the references of its operation
    {
        const WithoutGil no_gil;
        ended = self.engine.close(std::chrono::milliseconds(static_cast<std::int64_t>(patience * 1e3)), poll_signals);
    }
    orphans().drop();
    return ended;
}

nb::list events(BoundEngine& self) {
    nb::list made;
    for (const Engine::Event& event : self.engine.take_events()) {
        made.append(nb::make_tuple(event.operation, event.worker, event.start, event.end));
    }
    return made;
}

}  // namespace

GRAPHKIT_BINDINGS(engine) {
    nb::exception<Cancelled>(m, "Cancelled", m.attr("Error"));

    nb::class_<BoundVariable>(m, "Variable", "A resource that operations of one engine read and write.");

    nb::class_<BoundEngine>(m, "Engine", "Runs operations on worker threads, ordered by the variables that they share.")
        .def(nb::init<int>(), "workers"_a)
        .def("variable", [](BoundEngine& self) { return BoundVariable{self.engine.variable()}; })
        .def("push", &push_python, "name"_a, "function"_a, "raised"_a, "reads"_a, "writes"_a, "priority"_a,
             nb::sig("def push(self, name: str, function: collections.abc.Callable[[], object], raised: "
                     "dict[int, BaseException], reads: collections.abc.Sequence[Variable], writes: "
                     "collections.abc.Sequence[Variable], priority: int) -> None"))
        .def("push_kernel", &push_kernel, "name"_a, "kernel"_a, "inputs"_a, "outputs"_a, "reads"_a, "writes"_a,
             "priority"_a,
             nb::sig("def push_kernel(self, name: str, kernel: Kernel, inputs: "
                     "collections.abc.Sequence[numpy.ndarray | None], outputs: "
                     "collections.abc.Sequence[numpy.ndarray | None], reads: collections.abc.Sequence[Variable], "
                     "writes: collections.abc.Sequence[Variable], priority: int) -> None"))
        .def("wait", &wait, "variable"_a, "exclusive"_a,
             nb::sig("def wait(self, variable: Variable, exclusive: bool) -> tuple[BaseException | int, str] | None"),
             "Wait for a variable. Return None, or (exception or its key in `raised`, name of the failed operation).")
        .def("wait_all", &wait_all, nb::sig("def wait_all(self) -> tuple[BaseException | int, str] | None"),
             "Wait for all operations pushed so far. Return like `wait`.")
        .def("cancel", [](BoundEngine& self) { self.engine.cancel(); })
        .def("close", &close, "patience"_a,
             "Cancel, and wait for the workers. Return whether all ended within `patience` seconds.")
        .def_prop_ro("workers", [](BoundEngine& self) { return self.engine.workers(); })
        .def_prop_ro("pending", [](BoundEngine& self) { return self.engine.pending(); })
        .def(
            "released", [](BoundEngine& self) { return self.numbers->take_released(); },
            "Return the keys of `raised` that no failure refers to any more.")
        .def(
            "trace", [](BoundEngine& self, bool on) { self.engine.trace(on); }, "on"_a)
        .def("events", &events, nb::sig("def events(self) -> list[tuple[str, int, int, int]]"),
             "Return (name, worker, start, end) of the operations traced since the last call; times in nanoseconds.");
}

}  // namespace graphkit
