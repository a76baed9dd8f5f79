#include <atomic>
#include <mutex>
#include <utility>

#include "runtime/bindings.h"
#include "runtime/engine.h"
#include "runtime/kernel_call.h"

namespace graphkit {
namespace {

// References to Python objects that were dropped without the GIL, perhaps under an engine's mutex. The next thread with
// the GIL releases them.
class Orphans {
  public:
    void add(PyObject* object) {
        const std::lock_guard lock(mutex_);
        objects_.push_back(object);
    }

    void drop() {
        std::vector<PyObject*> taken;
        {
            const std::lock_guard lock(mutex_);
            taken.swap(objects_);
        }
        for (PyObject* object : taken) {
            Py_DECREF(object);  // may run arbitrary Python code; no lock is held
        }
    }

  private:
    std::mutex mutex_;
    std::vector<PyObject*> objects_;
};

Orphans& orphans() {
    static auto* const list = new Orphans;  // never destroyed: detached threads use it until the process ends
    return *list;
}

// A reference that may be copied and dropped without the GIL.
using Kept = std::shared_ptr<PyObject>;

Kept keep(PyObject* stolen) {
    return {stolen, [](PyObject* object) { orphans().add(object); }};
}

Kept keep(nb::handle object) {
    return keep(object.inc_ref().ptr());
}

// The exceptions that Python callables raise are stored in a dict of the Python engine, where the garbage collector
// sees them: they refer to frames, which may refer to the engine. Failures hold the keys of that dict; `released_` has
// the keys that no failure holds any more.
class Numbers {
  public:
    std::uint64_t next() { return next_.fetch_add(1); }

    void release(std::uint64_t number) {
        const std::lock_guard lock(mutex_);
        released_.push_back(number);
    }

    std::vector<std::uint64_t> take_released() {
        const std::lock_guard lock(mutex_);
        return std::exchange(released_, {});
    }

  private:
    std::atomic<std::uint64_t> next_{0};
    std::mutex mutex_;
    std::vector<std::uint64_t> released_;
};

// A Python callable raised an exception; `number` is its key.
struct PythonFailure : std::exception {
    explicit PythonFailure(std::shared_ptr<const std::uint64_t> held) : number(std::move(held)) {}
    const char* what() const noexcept override { return "a Python exception"; }
    std::shared_ptr<const std::uint64_t> number;
};

struct BoundEngine {
    explicit BoundEngine(int workers) : engine(workers) {}
    Engine engine;
    std::shared_ptr<Numbers> numbers = std::make_shared<Numbers>();
};

PyObject* take_raised() {
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != nullptr) {
        PyException_SetTraceback(value, traceback);
    }
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
#endif
}

// The Python thread state of a worker: created when it first runs a callable, kept until the thread ends.
class PythonThread {
  public:
    PythonThread() = default;
    PythonThread(const PythonThread&) = delete;
    PythonThread& operator=(const PythonThread&) = delete;

    ~PythonThread() {
        if (saved_ != nullptr && Py_IsInitialized()) {
            or_sleep([this] {
                PyEval_RestoreThread(saved_);
                PyGILState_Release(first_);
            });
        }
    }

    // Runs `body` with the GIL. `body` must not throw, and must not own anything that needs a destructor.
    template <typename Body>
    void with_gil(Body&& body) {
        or_sleep([&] {
            if (saved_ == nullptr) {
                first_ = PyGILState_Ensure();
            } else {
                PyEval_RestoreThread(saved_);
            }
            body();
            saved_ = PyEval_SaveThread();
        });
    }

  private:
    PyGILState_STATE first_{};
    PyThreadState* saved_ = nullptr;
};

thread_local PythonThread python_thread;

// A Python callable, and the dict that receives the exception that it raises.
struct PythonWork {
    Kept function;
    Kept raised;
    std::shared_ptr<Numbers> numbers;

    void operator()() {
        const std::uint64_t number = numbers->next();
        bool failed = false;
        python_thread.with_gil([&] {
            PyObject* const result = PyObject_CallNoArgs(function.get());
            if (result == nullptr) {
                failed = true;
                PyObject* const error = take_raised();
                PyObject* const key = PyLong_FromUnsignedLongLong(number);
                if (key == nullptr || PyDict_SetItem(raised.get(), key, error) != 0) {
                    PyErr_Clear();  // out of memory: a wait reports that the exception is missing
                }
                Py_XDECREF(key);
                Py_DECREF(error);
            }
            Py_XDECREF(result);
            function.reset();
            raised.reset();
            orphans().drop();
        });
        if (failed) {
            throw PythonFailure({new std::uint64_t(number), [keeper = numbers](const std::uint64_t* held) {
                                     keeper->release(*held);
                                     delete held;
                                 }});
        }
    }
};

void poll_signals() {
    const WithGil gil;
    if (PyErr_CheckSignals() != 0) {
        throw nb::python_error();
    }
}

// Held by value: a shared pointer that nanobind makes for a Python object needs the GIL when it is released.
struct BoundVariable {
    VariablePtr variable;
};

Variables variables_of(nb::handle sequence) {
    Variables found;
    for (nb::handle item : nb::iter(sequence)) {
        found.push_back(nb::cast<const BoundVariable&>(item).variable);
    }
    return found;
}

// Returns None, or a tuple (exception or its key, name of the failed operation).
nb::object report(const std::shared_ptr<const Failure>& failure) {
    orphans().drop();
    if (failure == nullptr) {
        return nb::none();
    }
    const nb::module_ native = nb::module_::import_("graphkit._native");
    nb::object error;
    try {
        std::rethrow_exception(failure->error);
    } catch (const PythonFailure& python) {
        error = nb::int_(*python.number);
    } catch (const Cancelled& cancelled) {
        error = native.attr("Cancelled")(cancelled.what());
    } catch (const std::exception& other) {
        error = native.attr("Error")(failure->operation + ": " + other.what());
    }
    return nb::make_tuple(error, failure->operation);
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
