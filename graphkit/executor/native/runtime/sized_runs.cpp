// Runs the programs of a template: one call checks the feeds, finds or makes the program for their sizes, and runs it.
#include <list>
#include <memory>
#include <unordered_map>

#include "runtime/array.h"
#include "runtime/bindings.h"
#include "runtime/sized_programs.h"

namespace graphkit {
namespace {

// An input that every run feeds.
struct Feed {
    nb::object name;
    int external;
    nb::object dtype;
    Dims shape;  // of an input with a static type; else only its length, the rank, counts
    std::optional<std::size_t> input;  // its number among the inputs without static types
};

struct Output {
    nb::object name;
    nb::object dtype;
};

// An instance with the parameters and constants that it reads. It has run a program of one structure.
struct BoundRun {
    explicit BoundRun(const Program& program) : instance(program) {}

    Instance instance;
    nb::object held;
    nb::object stamp;
};

using IdleRuns = std::vector<std::unique_ptr<BoundRun>>;

struct Bound {
    ProgramAt at;
    std::vector<nb::tuple> shapes;  // of the results
    IdleRuns* idle;                 // of the structure
};

// The program for inputs of certain shapes. `key`: the sizes of the open inputs in the order of the feeds.
struct Sized {
    Dims key;
    std::shared_ptr<const Bound> bound;
    std::int64_t runs = 0;
    bool left = false;  // Python chooses the program
};

using SizedPtr = std::shared_ptr<Sized>;

// The arrays of one run. They are kept alive, because other threads may change the dict of the caller.
struct Given {
    std::vector<nb::object> arrays;
    std::vector<void*> data;
    Dims key;
};

bool is_no_memory(nb::python_error& error) {
    return error.matches(PyExc_MemoryError) || error.matches(PyExc_ValueError);
}

class SizedRuns {
  public:
    using FeedParts = std::tuple<nb::object, int, nb::object, Dims, std::optional<std::size_t>>;

    SizedRuns(nb::object programs, const std::vector<FeedParts>& feeds, std::size_t inputs, int first_result,
              const std::vector<std::pair<nb::object, nb::object>>& outputs, std::size_t kept, const nb::object& host)
        : owner_(std::move(programs)),
          programs_(nb::cast<SizedPrograms*>(owner_)),
          inputs_(inputs),
          first_result_(first_result),
          kept_(kept),
          host_(host) {
        for (const auto& [name, external, dtype, shape, input] : feeds) {
            feeds_.push_back({name, external, dtype, shape, input});
        }
        for (const auto& [name, dtype] : outputs) {
            outputs_.push_back({name, dtype});
        }
    }

    SizedRuns(const SizedRuns&) = delete;
    SizedRuns& operator=(const SizedRuns&) = delete;

    nb::object run(const nb::dict& feeds, double deadline) {
        Given given;
        if (!open(feeds, given)) {
            return nb::none();
        }
        const SizedPtr sized = sized_at(given.key);
        if (sized->left) {
            return nb::none();
        }
        if (sized->runs >= host_.most_runs) {
            sized->runs = 0;
            return nb::bool_(true);
        }
        const bool is_new = sized->bound == nullptr;
        const std::shared_ptr<const Bound> bound = is_new ? bind(*sized) : sized->bound;
        if (bound == nullptr) {
            sized->left = true;
            return nb::none();
        }
        ++sized->runs;
        nb::object results = run_bound(*bound, given, nanoseconds(deadline));
        if (!results.is_none()) {
            latest_ = sized;
            if (is_new && !host_.made.is_none()) {
                host_.made(shapes_of(sized->key), results);
            }
        }
        return results;
    }

    void serve(const Shapes& shapes, std::int64_t runs) {
        if (const SizedPtr sized = sized_of(shapes); sized != nullptr) {
            sized->left = false;
            sized->runs = runs;
        }
    }

    void leave(const Shapes& shapes) {
        if (const SizedPtr sized = sized_of(shapes); sized != nullptr) {
            sized->left = true;
            sized->bound = nullptr;
        }
    }

    nb::object take_latest() {
        const SizedPtr latest = std::exchange(latest_, nullptr);
        return latest == nullptr ? nb::none() : nb::object(shapes_of(latest->key));
    }

    std::size_t count() const { return recent_.size(); }

  private:
    // The functions and numbers of the Python object `host`, see the bindings.
    struct Host {
        explicit Host(const nb::object& host)
            : kernel(host.attr("kernel")),
              structured(host.attr("structured")),
              accepts(host.attr("accepts")),
              may_take(host.attr("may_take")),
              made(host.attr("made")),
              stamp(host.attr("stamp")),
              operands(host.attr("operands")),
              take_arena(host.attr("take_arena")),
              give_arena(host.attr("give_arena")),
              recycled(host.attr("recycled")),
              refused(host.attr("refused")),
              most_runs(nb::cast<std::int64_t>(host.attr("most_runs"))),
              recycled_bytes(nb::cast<std::int64_t>(host.attr("recycled_bytes"))),
              most_bytes(nb::cast<std::int64_t>(host.attr("most_bytes"))),
              most_unchecked(nb::cast<std::int64_t>(host.attr("most_unchecked"))),
              idle(nb::cast<std::size_t>(host.attr("idle"))) {}

        nb::callable kernel, structured;
        nb::object accepts, may_take, made, stamp, operands, take_arena, give_arena, recycled, refused;
        std::int64_t most_runs, recycled_bytes, most_bytes, most_unchecked;
        std::size_t idle;
    };

    // Reads the arrays. Returns false unless they are of the usual kind.
    bool open(const nb::dict& feeds, Given& given) const {
        if (static_cast<std::size_t>(PyDict_GET_SIZE(feeds.ptr())) != feeds_.size()) {
            return false;
        }
        given.arrays.reserve(feeds_.size());
        given.data.reserve(feeds_.size());
        for (const Feed& feed : feeds_) {
            PyObject* const object = PyDict_GetItemWithError(feeds.ptr(), feed.name.ptr());
            if (object == nullptr) {
                if (PyErr_Occurred() != nullptr) {
                    throw nb::python_error();
                }
                return false;
            }
            const std::optional<PlainArray> array = plain_array(object);
            if (!array || !array->readable || array->rank != feed.shape.size() || !has_dtype(*array, feed)) {
                return false;
            }
            given.arrays.push_back(nb::borrow(object));
            given.data.push_back(array->data);
            const std::int64_t* const end = array->dims + array->rank;
            if (feed.input) {
                given.key.insert(given.key.end(), array->dims, end);
            } else if (!std::equal(array->dims, end, feed.shape.begin())) {
                return false;
            }
        }
        return true;
    }

    static bool has_dtype(const PlainArray& array, const Feed& feed) {
        if (array.dtype == feed.dtype.ptr()) {
            return true;
        }
        const int equal = PyObject_RichCompareBool(array.dtype, feed.dtype.ptr(), Py_EQ);
        if (equal < 0) {
            throw nb::python_error();
        }
        return equal == 1;
    }

    // Returns the entry of the open inputs with these sizes, as the most recently used one.
    SizedPtr sized_at(const Dims& key) {
        if (const auto found = by_key_.find(key); found != by_key_.end()) {
            recent_.splice(recent_.begin(), recent_, found->second);
            return recent_.front();
        }
        recent_.push_front(std::make_shared<Sized>());
        recent_.front()->key = key;
        by_key_.emplace(key, recent_.begin());
        SizedPtr made = recent_.front();
        if (recent_.size() > kept_) {
            by_key_.erase(recent_.back()->key);
            recent_.pop_back();
        }
        return made;
    }

    // Returns null if the shapes are not those of feeds. `shapes`: of the inputs without static types.
    SizedPtr sized_of(const Shapes& shapes) {
        Dims key;
        for (const Feed& feed : feeds_) {
            if (feed.input) {
                if (*feed.input >= shapes.size() || !shapes[*feed.input] ||
                    shapes[*feed.input]->size() != feed.shape.size()) {
                    return nullptr;
                }
                key.insert(key.end(), shapes[*feed.input]->begin(), shapes[*feed.input]->end());
            }
        }
        return sized_at(key);
    }

    Shapes dims_of(const Dims& key) const {
        Shapes shapes(inputs_);
        auto next = key.begin();
        for (const Feed& feed : feeds_) {
            if (feed.input) {
                const auto end = next + static_cast<std::ptrdiff_t>(feed.shape.size());
                shapes.at(*feed.input) = Dims(next, end);
                next = end;
            }
        }
        return shapes;
    }

    nb::list shapes_of(const Dims& key) const {
        nb::list made;
        for (const auto& shape : dims_of(key)) {
            made.append(shape ? nb::object(as_tuple(*shape)) : nb::none());
        }
        return made;
    }

    // Returns null if Python must choose the program.
    std::shared_ptr<const Bound> bind(Sized& sized) {
        const Shapes shapes = dims_of(sized.key);
        const bool is_batch = std::any_of(shapes.begin(), shapes.end(), [](const auto& shape) {
            return shape && !shape->empty() && (*shape)[0] > 1;
        });
        if (is_batch && !host_.accepts.is_none() && !nb::cast<bool>(host_.accepts(shapes_of(sized.key)))) {
            return nullptr;
        }
        std::optional<ProgramAt> made;
        try {
            made = programs_->make(shapes, std::nullopt, host_.kernel, host_.structured);
        } catch (const NativeError&) {
            return nullptr;
        } catch (nb::python_error& error) {
            if (!error.matches(host_.refused)) {
                throw;
            }
            return nullptr;
        }
        if (!made || !has_room(*made)) {
            return nullptr;
        }
        auto bound = std::make_shared<Bound>();
        for (const SizedResult& result : made->results) {
            bound->shapes.push_back(as_tuple(result.shape));
        }
        bound->idle = &idle_[made->structure];
        bound->at = std::move(*made);
        // Meanwhile, another thread may have done the same.
        if (sized.bound == nullptr) {
            sized.bound = bound;
        }
        return bound;
    }

    // Asks whether there is memory: for each large program, and once for many small ones, because asking takes long.
    bool has_room(const ProgramAt& made) {
        std::int64_t bytes = made.arena_bytes;
        for (const SizedResult& result : made.results) {
            bytes += result.bytes;
        }
        if (bytes <= host_.most_bytes) {
            unchecked_bytes_ += bytes;
            if (unchecked_bytes_ < host_.most_unchecked) {
                return true;
            }
            unchecked_bytes_ = 0;
        }
        return nb::cast<bool>(host_.may_take(bytes));
    }

    // Returns the outputs by name; None if there is no memory for them.
    nb::object run_bound(const Bound& bound, const Given& given, std::int64_t deadline) {
        std::vector<nb::object> results;
        results.reserve(outputs_.size());
        nb::object arena;
        try {
            for (std::size_t i = 0; i < outputs_.size(); ++i) {
                const std::int64_t bytes = bound.at.results[i].bytes;
                results.push_back(bytes < host_.recycled_bytes
                                      ? new_array(bound.shapes[i], outputs_[i].dtype)
                                      : host_.recycled(i, bound.shapes[i], outputs_[i].dtype, bytes));
            }
            arena = host_.take_arena(bound.at.arena_bytes);
        } catch (nb::python_error& error) {
            if (!is_no_memory(error)) {
                throw;
            }
            return nb::none();
        }
        std::unique_ptr<BoundRun> taken = instance_of(bound);
        Instance& instance = taken->instance;
        for (std::size_t i = 0; i < feeds_.size(); ++i) {
            instance.set_external(feeds_[i].external, given.data[i]);
        }
        nb::dict outputs;
        for (std::size_t i = 0; i < outputs_.size(); ++i) {
            instance.set_external(first_result_ + static_cast<int>(i), open_array(results[i], "result", true).data);
            outputs[outputs_[i].name] = results[i];
        }
        move_to(arena, *bound.at.program, instance);
        instance.limit(std::numeric_limits<std::size_t>::max(), std::numeric_limits<std::int64_t>::max(), deadline);
        {
            static const Instance::Call no_call = [](std::size_t) {};
            static const std::function<void()> poll = check_signals;
            const WithoutGil no_gil;
            instance.run(no_call, poll);
        }
        // The instance of a run that failed is not used again, because it refers to arrays of the caller.
        if (bound.idle->size() < host_.idle) {
            bound.idle->push_back(std::move(taken));
        }
        host_.give_arena(arena);
        return outputs;
    }

    // Returns an instance for one run, with the current parameters.
    std::unique_ptr<BoundRun> instance_of(const Bound& bound) {
        BoundProgram& program = *bound.at.program;
        std::unique_ptr<BoundRun> taken;
        if (bound.idle->empty()) {
            taken = std::make_unique<BoundRun>(program);
        } else {
            taken = std::move(bound.idle->back());
            bound.idle->pop_back();
            taken->instance.rebind(program);
        }
        for (auto& [external, elements] : program.shape_values) {
            taken->instance.set_external(external, elements.data());
        }
        nb::object stamp = host_.stamp();
        if (!taken->stamp.is_valid() || !taken->stamp.equal(stamp)) {
            const nb::object& shared = bound.at.structure->operands;
            nb::object held = host_.operands(shared);
            const auto externals = nb::cast<std::vector<int>>(shared.attr("externals"));
            for (std::size_t i = 0; i < externals.size(); ++i) {
                taken->instance.set_external(externals[i], open_array(nb::object(held[i]), "external", false).data);
            }
            taken->held = std::move(held);
            taken->stamp = std::move(stamp);
        }
        return taken;
    }

    nb::object owner_;  // of programs_
    SizedPrograms* programs_;
    std::size_t inputs_;
    int first_result_;
    std::size_t kept_;
    Host host_;
    std::vector<Feed> feeds_;
    std::vector<Output> outputs_;
    std::unordered_map<const Structure*, IdleRuns> idle_;
    std::list<SizedPtr> recent_;  // most recently used first
    std::unordered_map<Dims, std::list<SizedPtr>::iterator, DimsHash> by_key_;
    SizedPtr latest_;  // of the latest run
    std::int64_t unchecked_bytes_ = 0;
};

}  // namespace

GRAPHKIT_BINDINGS(sized_runs, "sized_programs") {
    nb::class_<SizedRuns>(m, "SizedRuns",
                          "Runs the programs of a template. The programs for the most recently used sizes are cached.")
        .def(nb::init<nb::object, const std::vector<SizedRuns::FeedParts>&, std::size_t, int,
                      const std::vector<std::pair<nb::object, nb::object>>&, std::size_t, const nb::object&>(),
             nb::kw_only(), "programs"_a, "feeds"_a, "inputs"_a, "first_result"_a, "outputs"_a, "kept"_a, "host"_a,
             nb::sig("def __init__(self, *, programs: SizedPrograms, feeds: collections.abc.Sequence[tuple[str, int, "
                     "numpy.dtype, collections.abc.Sequence[int], int | None]], inputs: int, first_result: int, "
                     "outputs: collections.abc.Sequence[tuple[str, numpy.dtype]], kept: int, host: object) -> None"),
             "programs: the programs. They must have no states.\n"
             "feeds: the inputs of each run: (name, external memory, dtype, shape, number among the inputs of "
             "`programs`). If there is such a number, only the rank of the shape counts, else the number is None.\n"
             "inputs: number of inputs of `programs`.\n"
             "first_result: external memory of the first output.\n"
             "outputs: their names and dtypes.\n"
             "kept: number of programs that are kept.\n"
             "host: has the functions and numbers that graphkit.executor.run.sized_runs.Host describes.")
        .def("run", &SizedRuns::run, "feeds"_a, "deadline"_a,
             nb::sig("def run(self, feeds: dict[str, typing.Any], deadline: float) -> dict[str, numpy.ndarray] | bool "
                     "| None"),
             "Return the outputs by name. Return None if the caller must make all checks and choose the program, and "
             "True if it must also compile one, because these sizes occur often. Raise Error if a kernel fails, and "
             "LimitReached after the deadline "
             "(monotonic clock, seconds).")
        .def("serve", &SizedRuns::serve, "shapes"_a, "runs"_a,
             "Use programs of the template for inputs of these shapes. runs: number of runs that they have had.")
        .def("leave", &SizedRuns::leave, "shapes"_a, "Return None from `run` for inputs of these shapes.")
        .def("take_latest", &SizedRuns::take_latest,
             nb::sig("def take_latest(self) -> list[tuple[int, ...] | None] | None"),
             "Return the shapes of the latest run, once; None if there was none since the last call.")
        .def("__len__", &SizedRuns::count, "Number of sizes that are kept.");
}

}  // namespace graphkit
