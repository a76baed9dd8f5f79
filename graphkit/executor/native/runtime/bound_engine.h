// The dependency engine for Python: its operations may be Python callables, and their exceptions are Python's.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/bindings.h"
#include "runtime/engine.h"

namespace graphkit {

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

inline Orphans& orphans() {
    static auto* const list = new Orphans;  // never destroyed: detached threads use it until the process ends
    return *list;
}

// A reference that may be copied and dropped without the GIL.
using Kept = std::shared_ptr<PyObject>;

inline Kept keep(PyObject* stolen) {
    return {stolen, [](PyObject* object) { orphans().add(object); }};
}

inline Kept keep(nb::handle object) {
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

inline PyObject* take_raised() {
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

inline thread_local PythonThread python_thread;

// A Python callable, and the dict that receives the exception that it raises.
struct PythonWork {
    Kept function;
    Kept raised;
    std::shared_ptr<Numbers> numbers;
    // Whether the exception keeps its traceback, and so everything that the frames refer to.
    bool keeps_traceback = true;

    void operator()() {
        const std::uint64_t number = numbers->next();
        bool failed = false;
        python_thread.with_gil([&] {
            PyObject* const result = PyObject_CallNoArgs(function.get());
            if (result == nullptr) {
                failed = true;
                PyObject* const error = take_raised();
                if (!keeps_traceback) {
                    PyException_SetTraceback(error, Py_None);
                    PyException_SetContext(error, nullptr);
                    PyException_SetCause(error, nullptr);
                }
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

inline void poll_signals() {
    const WithGil gil;
    if (PyErr_CheckSignals() != 0) {
        throw nb::python_error();
    }
}

// Held by value: a shared pointer that nanobind makes for a Python object needs the GIL when it is released.
struct BoundVariable {
    VariablePtr variable;
};

// Returns None, or a tuple (exception or its key, name of the failed operation).
inline nb::object report(const std::shared_ptr<const Failure>& failure) {
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

}  // namespace graphkit
