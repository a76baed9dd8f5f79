#include <nanobind/stl/unique_ptr.h>

#include <atomic>
#include <limits>
#include <memory>
#include <tuple>

#ifdef __unix__
#include <pthread.h>
#endif

#include "runtime/array.h"
#include "runtime/bindings.h"
#include "runtime/bound_program.h"
#include "runtime/bytes.h"
#include "runtime/parts.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

using LocationPair = std::pair<int, std::int64_t>;  // a Location in Python: (external memory, offset)

// The thread that handles Python's signals. In the child of a fork, it is the thread that forked.
std::atomic<unsigned long> main_thread{0};

void follow_main_thread() {
    const nb::object ident = nb::module_::import_("threading").attr("main_thread")().attr("ident");
    main_thread = nb::cast<unsigned long>(ident);
#ifdef __unix__
    pthread_atfork(nullptr, nullptr, [] { main_thread = PyThread_get_thread_ident(); });
#endif
}

bool in_main_thread() {
    return PyThread_get_thread_ident() == main_thread.load(std::memory_order_relaxed);
}

Location location_of(const LocationPair& where) {
    return {where.first, where.second};
}

// The result of Python's `make` for a dynamic kernel: kernel or None, shapes of the outputs, views, known outputs,
// function or None.
using Made = std::tuple<nb::object, std::vector<Dims>, std::vector<std::pair<std::size_t, std::size_t>>,
                        std::vector<std::pair<std::size_t, nb::bytes>>, nb::object>;

nb::object bytes_at(const void* data, std::size_t bytes) {
    auto* const start = static_cast<char*>(const_cast<void*>(data));
    return nb::steal(PyMemoryView_FromMemory(start, static_cast<Py_ssize_t>(bytes), PyBUF_WRITE));
}

nb::list arrays_at(const void* const* data, const std::vector<std::size_t>& bytes) {
    nb::list made;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        made.append(data[i] == nullptr ? nb::none() : bytes_at(data[i], bytes[i]));
    }
    return made;
}

// Needs the GIL. The thread that drops the last reference to the result need not hold it.
std::shared_ptr<const Prepared> prepared_from(nb::handle object) {
    struct Held {
        Prepared prepared;
        nb::object kernel;
        nb::object function;
    };
    auto [kernel, shapes, views, known, call] = nb::cast<Made>(object);
    std::shared_ptr<Held> held(new Held, [](Held* done) {
        const WithGil gil;
        delete done;
    });
    Prepared& made = held->prepared;
    made.shapes = std::move(shapes);
    made.views = std::move(views);
    for (const auto& [output, bytes] : known) {
        made.known.emplace_back(output, std::string(bytes.c_str(), bytes.size()));
    }
    held->kernel = std::move(kernel);
    held->function = std::move(call);
    if (!held->kernel.is_none()) {
        made.kernel = nb::cast<const Kernel*>(held->kernel);
        made.scratch_bytes = made.kernel->scratch_bytes();
    }
    if (!held->function.is_none()) {
        made.call = [function = held->function.ptr()](const void* const* inputs, const std::vector<std::size_t>& bytes,
                                                      const Prepared::Deliver& deliver) {
            const WithGil gil;
            const nb::list operands = arrays_at(inputs, bytes);
            nb::object results;
            or_sleep([&] { results = nb::borrow(function)(operands); });
            std::size_t output = 0;
            for (nb::handle result : results) {
                if (!result.is_none()) {
                    const Array array = open_array(result, "result", false);
                    deliver(output, array.data, nb::cast<Dims>(result.attr("shape")), array.bytes);
                }
                ++output;
            }
        };
    }
    return {held, &made};
}

// Adds steps to a block.
struct Builder {
    BoundProgram* program;
    Block* block;

    std::size_t entry(const LocationPair& pair) const { return program->entry(location_of(pair)); }

    // Declares a buffer that may be the operand of no step, so that the program would not know of it otherwise.
    int declared(int external) const {
        program->use_external(external);
        return external;
    }

    std::size_t optional_entry(const std::optional<LocationPair>& where) const {
        return where ? entry(*where) : Loop::kNone;
    }

    std::size_t entries(const std::vector<LocationPair>& list) const {
        std::vector<Location> locations;
        for (const LocationPair& pair : list) {
            locations.push_back(location_of(pair));
        }
        return program->entries(locations);
    }

    void kernel(const std::string& name, nb::object kernel, const std::vector<LocationPair>& inputs,
                const std::vector<LocationPair>& outputs, const LocationPair& scratch) const {
        Step step{Step::Kind::kernel, name};
        step.inputs = entries(inputs);
        step.input_entries = inputs.size();
        step.outputs = entries(outputs);
        step.output_entries = outputs.size();
        step.scratch = entry(scratch);
        program->add_kernel(*block, std::move(step), *nb::cast<const Kernel*>(kernel));
        program->kept.push_back(std::move(kernel));
    }

    void copy(const std::string& name, const LocationPair& source, const LocationPair& target,
              std::size_t bytes) const {
        Step step{Step::Kind::copy, name};
        step.inputs = entry(source);
        step.outputs = entry(target);
        step.bytes = bytes;
        block->steps.push_back(std::move(step));
    }

    // (buffer or -1, bytes of an element, number of elements or 0 if in a buffer, by_value)
    using DynamicOperand = std::tuple<int, std::size_t, std::int64_t, bool>;

    Dynamic make_dynamic(nb::object make, const std::vector<LocationPair>& inputs,
                         const std::vector<DynamicOperand>& operands) const {
        Dynamic dynamic;
        dynamic.number = program->take_dynamic();
        dynamic.first_input = entries(inputs);
        dynamic.input_entries = inputs.size();
        for (const auto& [buffer, item, elements, by_value] : operands) {
            dynamic.inputs.push_back({declared(buffer), item, elements, by_value});
        }
        // The program keeps the function alive. The lambda holds no reference, since dropping one would need the GIL.
        dynamic.make = [function = make.ptr()](const Dynamic::Shapes& shapes, const Dynamic::Shapes& values) {
            const WithGil gil;
            nb::object made;
            or_sleep([&] { made = nb::borrow(function)(shapes, values); });
            return prepared_from(made);
        };
        program->kept.push_back(std::move(make));
        return dynamic;
    }

    void dynamic(const std::string& name, nb::object make, const std::vector<LocationPair>& inputs,
                 const std::vector<DynamicOperand>& operands, const std::vector<LocationPair>& outputs,
                 const std::vector<DynamicOperand>& results) const {
        Step step{Step::Kind::dynamic, name};
        step.index = block->dynamic.size();
        Dynamic& made = block->dynamic.emplace_back(make_dynamic(std::move(make), inputs, operands));
        made.first_output = entries(outputs);
        for (const auto& [buffer, item, elements, by_value] : results) {
            made.outputs.push_back({declared(buffer), item, elements, by_value});
        }
        block->steps.push_back(std::move(step));
    }

    // (buffer, or -1 and its shape); (buffer, or -1 and its number of elements)
    using SizedInput = std::pair<int, Dims>;
    using SizedOutput = std::pair<int, std::int64_t>;

    void data_dependent(const std::string& name, nb::object kernel, const std::vector<LocationPair>& inputs,
                        const std::vector<SizedInput>& operands, const std::vector<LocationPair>& outputs,
                        const std::vector<SizedOutput>& results, nb::object found) const {
        Step step{Step::Kind::data_dependent, name};
        step.index = block->data_dependent.size();
        DataDependentStep made;
        made.kernel = nb::cast<const DataDependentKernel*>(kernel);
        if (inputs.size() != made.kernel->inputs().size() || outputs.size() != made.kernel->outputs().size() ||
            operands.size() != inputs.size() || results.size() != outputs.size()) {
            throw NativeError(name + ": " + made.kernel->name() + " takes another number of operands");
        }
        made.first_input = entries(inputs);
        made.first_output = entries(outputs);
        for (const auto& [buffer, shape] : operands) {
            made.inputs.push_back({declared(buffer), shape});
        }
        for (const auto& [buffer, elements] : results) {
            made.outputs.push_back({declared(buffer), elements});
        }
        if (!found.is_none()) {
            made.found = [function = found.ptr()](const std::vector<Dims>& shapes) {
                const WithGil gil;
                or_sleep([&] { nb::borrow(function)(shapes); });
            };
            program->kept.push_back(std::move(found));
        }
        program->kept.push_back(std::move(kernel));
        block->data_dependent.push_back(std::move(made));
        block->steps.push_back(std::move(step));
    }

    void store(const std::string& name, int source, int target, std::size_t item) const {
        Step step{Step::Kind::store, name};
        step.source = declared(source);
        step.target = declared(target);
        step.bytes = item;
        block->steps.push_back(std::move(step));
    }

    void resize(const std::string& name, int buffer, const Dims& shape, std::size_t item) const {
        Step step{Step::Kind::resize, name};
        step.target = declared(buffer);
        step.dims = shape;
        step.bytes = item;
        block->steps.push_back(std::move(step));
    }

    void row(const std::string& name, int buffer, std::size_t item, const LocationPair& index, bool wide,
             const LocationPair& target) const {
        Step step{Step::Kind::row, name};
        step.source = declared(buffer);
        step.bytes = item;
        step.wide = wide;
        step.inputs = entry(index);
        step.outputs = entry(target);
        block->steps.push_back(std::move(step));
    }

    void sizes(const std::string& name, int buffer, std::int64_t first, std::int64_t last,
               const LocationPair& target) const {
        Step step{Step::Kind::sizes, name};
        step.source = declared(buffer);
        step.dims = {first, last};
        step.outputs = entry(target);
        block->steps.push_back(std::move(step));
    }

    void call(const std::string& name, std::size_t index) const {
        Step step{Step::Kind::call, name};
        step.index = index;
        block->steps.push_back(std::move(step));
    }

    void commit() const { block->steps.push_back(Step{Step::Kind::commit, "commit"}); }

    void fail(const std::string& message) const { block->steps.push_back(Step{Step::Kind::fail, message}); }

    std::pair<Builder, Builder> branch(const std::string& name, const LocationPair& condition) const {
        Step step{Step::Kind::branch, name};
        step.inputs = entry(condition);
        step.index = block->branches.size();
        block->steps.push_back(std::move(step));
        Branch& made = block->branches.emplace_back();
        made.taken[0] = std::make_unique<Block>();
        made.taken[1] = std::make_unique<Block>();
        return {Builder{program, made.taken[1].get()}, Builder{program, made.taken[0].get()}};
    }

    // initial, before, after, turns, final, bytes. `turns` are the two alternating places or, if `after` is a row of a
    // stack, whether the rows are written from the end.
    using Turns = std::variant<std::pair<LocationPair, LocationPair>, bool>;
    using State = std::tuple<LocationPair, int, int, Turns, std::optional<LocationPair>, std::size_t>;
    // initial, its buffer (or -1 and its shape), before, after, final or -1, bytes of an element
    using DynamicState = std::tuple<LocationPair, int, Dims, int, int, int, std::size_t>;
    // external, whole, stride, backwards, buffer of the whole or -1, bytes of an element
    using Slice = std::tuple<int, LocationPair, std::int64_t, bool, int, std::size_t>;
    // row, buffer, shape of a row or None, bytes of an element, backwards
    using Stack = std::tuple<int, int, std::optional<Dims>, std::size_t, bool>;
    // function, operands
    using Empty = std::tuple<nb::object, std::vector<LocationPair>, std::vector<DynamicOperand>>;

    Builder loop(const std::string& name, std::int64_t trips, const std::optional<LocationPair>& trip_count,
                 const std::optional<LocationPair>& condition, const std::optional<LocationPair>& iteration,
                 const std::optional<LocationPair>& condition_before,
                 const std::optional<LocationPair>& condition_after, const std::vector<State>& states,
                 const std::vector<DynamicState>& dynamic_states, const std::vector<Slice>& slices,
                 const std::vector<Stack>& stacks, const std::optional<Empty>& empty) const {
        Step step{Step::Kind::loop, name};
        step.index = block->loops.size();
        block->steps.push_back(std::move(step));
        Loop& made = block->loops.emplace_back();
        made.trips = trips;
        made.trip_count = optional_entry(trip_count);
        made.condition = optional_entry(condition);
        made.iteration = optional_entry(iteration);
        made.condition_before = optional_entry(condition_before);
        made.condition_after = optional_entry(condition_after);
        for (const auto& [initial, before, after, turns, final, bytes] : states) {
            Loop::State& value = made.states.emplace_back(Loop::State{entry(initial),
                                                                      declared(before),
                                                                      declared(after),
                                                                      {0, 0},
                                                                      optional_entry(final),
                                                                      bytes,
                                                                      Loop::State::Kept::turns});
            if (const auto* pair = std::get_if<std::pair<LocationPair, LocationPair>>(&turns)) {
                value.turns[0] = entry(pair->first);
                value.turns[1] = entry(pair->second);
            } else {
                value.kept = std::get<bool>(turns) ? Loop::State::Kept::row_from_end : Loop::State::Kept::row;
            }
        }
        for (const auto& [initial, buffer, dims, before, after, final, item] : dynamic_states) {
            made.dynamic_states.push_back(
                {entry(initial), declared(buffer), dims, declared(before), declared(after), declared(final), item});
        }
        for (const auto& [external, whole, stride, backwards, buffer, item] : slices) {
            made.slices.push_back({declared(external), entry(whole), stride, backwards, declared(buffer), item});
        }
        for (const auto& [row, whole, dims, item, backwards] : stacks) {
            made.stacks.push_back(
                {declared(row), declared(whole), dims.has_value(), dims.value_or(Dims()), item, backwards});
        }
        if (empty) {
            const auto& [function, inputs, operands] = *empty;
            made.empty = std::make_unique<Dynamic>(make_dynamic(function, inputs, operands));
        }
        made.body = std::make_unique<Block>();
        return Builder{program, made.body.get()};
    }
};

// An instance, and a reference to its program.
struct BoundInstance {
    nb::object program;
    Instance instance;

    explicit BoundInstance(nb::object owner) : program(std::move(owner)), instance(completed(program)) {
        for (auto& [external, elements] : nb::cast<BoundProgram*>(program)->shape_values) {
            instance.set_external(external, elements.data());
        }
    }

    static const Program& completed(const nb::object& program) {
        auto* const found = nb::cast<BoundProgram*>(program);
        found->complete();
        return *found;
    }

    void check(int external) const {
        if (external < 0 || external >= nb::cast<BoundProgram*>(program)->externals()) {
            throw nb::index_error("the program has no such external memory");
        }
    }

    void set(int external, nb::handle array) {
        check(external);
        instance.set_external(external, array.is_none() ? nullptr : open_array(array, "external", false).data);
    }

    void set_all(const std::vector<int>& externals, nb::list arrays) {
        if (externals.size() != nb::len(arrays)) {
            throw nb::value_error("as many arrays as external memories are needed");
        }
        for (std::size_t i = 0; i < externals.size(); ++i) {
            set(externals[i], arrays[i]);
        }
    }

    void set_buffer(int buffer, nb::handle array, Dims shape) {
        check(buffer);
        instance.set_buffer(buffer, open_array(array, "buffer", false).data, std::move(shape));
    }

    void limit(std::size_t memory, std::int64_t iterations, double deadline) {
        instance.limit(memory, iterations, nanoseconds(deadline));
    }

    void lend(int buffer, nb::handle array) {
        check(buffer);
        const Array memory = open_array(array, "buffer", true);
        instance.lend(buffer, memory.data, memory.bytes);
    }

    std::optional<Dims> take_back(int buffer) {
        check(buffer);
        return instance.take_back(buffer) ? std::optional(instance.shape_of(buffer)) : std::nullopt;
    }

    // Returns the bytes and the shape of a buffer; valid until the buffer is written again.
    nb::tuple read(int buffer, std::size_t item) {
        check(buffer);
        const Dims& shape = instance.shape_of(buffer);
        return nb::make_tuple(bytes_at(instance.data_of(buffer), static_cast<std::size_t>(count(shape)) * item), shape);
    }

    // Returns a copy of the array in each buffer, or None if it has at least `limit` bytes.
    nb::list copies(nb::list buffers, nb::list dtypes, std::size_t limit) {
        nb::list made;
        for (std::size_t i = 0; i < buffers.size(); ++i) {
            const int buffer = nb::cast<int>(buffers[i]);
            check(buffer);
            const Dims& shape = instance.shape_of(buffer);
            if (bytes_of(shape, item_size(dtypes[i])) >= limit) {
                made.append(nb::none());
                continue;
            }
            const nb::object copy = new_array(as_tuple(shape), dtypes[i]);
            const Array target = open_array(copy, "copy", true);
            copy_bytes(target.data, instance.data_of(buffer), target.bytes);
            made.append(copy);
        }
        return made;
    }

    void move(nb::handle arena) { move_to(arena, *nb::cast<BoundProgram*>(program), instance); }

    void run(nb::list arrays, nb::handle arena, const nb::object& call) {
        move(arena);
        int external = 0;
        for (nb::handle array : arrays) {
            if (!array.is_none()) {
                set(external, array);
            }
            ++external;
        }
        const Instance::Call forward = [&](std::size_t index) {
            const WithGil gil;
            or_sleep([&] { call(index); });
        };
        const WithoutGil no_gil;
        instance.run(forward, check_signals);
    }

    // Returns (name, start, end) of each step, in nanoseconds of the monotonic clock.
    nb::list events() {
        nb::list made;
        for (const Event& event : instance.take_events()) {
            made.append(nb::make_tuple(event.step->name, event.start, event.end));
        }
        return made;
    }
};

void run_parts_of(nb::list instances, nb::list arenas, nb::list arrays, const std::vector<std::int64_t>& steps,
                  std::int64_t parts) {
    std::vector<Instance*> chosen;
    for (std::size_t i = 0; i < instances.size(); ++i) {
        auto& bound = *nb::cast<BoundInstance*>(instances[i]);
        bound.move(arenas[i]);
        chosen.push_back(&bound.instance);
    }
    std::vector<PartArray> given;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
        if (!arrays[i].is_none()) {
            const int external = static_cast<int>(i);
            nb::cast<BoundInstance*>(instances[0])->check(external);
            given.push_back(
                {external, static_cast<std::byte*>(open_array(arrays[i], "external", false).data), steps.at(i)});
        }
    }
    const WithoutGil no_gil;
    run_parts(chosen, given, parts, check_signals);
}

}  // namespace

void move_to(nb::handle arena, const BoundProgram& program, Instance& instance) {
    const Array memory = open_array(arena, "arena", true);
    if (memory.bytes < program.arena_bytes()) {
        throw nb::value_error("the arena is too small for the program");
    }
    instance.move(static_cast<std::byte*>(memory.data));
}

std::int64_t nanoseconds(double seconds) {
    constexpr double kNanoseconds = 1e9;
    constexpr auto kNever = std::numeric_limits<std::int64_t>::max();
    const bool ends = seconds * kNanoseconds < static_cast<double>(kNever);
    return ends ? static_cast<std::int64_t>(seconds * kNanoseconds) : kNever;
}

void check_signals() {
    if (!in_main_thread()) {  // other threads handle no signals, and would only wait for the GIL
        return;
    }
    const WithGil gil;
    if (PyErr_CheckSignals() != 0) {
        throw nb::python_error();
    }
}

namespace {

void bind_builder(nb::module_& m) {
    nb::class_<Builder>(m, "Builder",
                        "Adds steps to a program. An operand is (external memory, offset): -1 is the "
                        "arena, -2 an operand that is absent.")
        .def("kernel", &Builder::kernel, "name"_a, "kernel"_a, "inputs"_a, "outputs"_a, "scratch"_a)
        .def("copy", &Builder::copy, "name"_a, "source"_a, "target"_a, "bytes"_a)
        .def("dynamic", &Builder::dynamic, "name"_a, "make"_a, "inputs"_a, "operands"_a, "outputs"_a, "results"_a,
             "Add a node that make(shapes, values) prepares during a run, when its operands' shapes are known.")
        .def("data_dependent", &Builder::data_dependent, "name"_a, "kernel"_a, "inputs"_a, "operands"_a, "outputs"_a,
             "results"_a, "found"_a.none(),
             "Add a kernel with data-dependent result shapes; found(shapes) is called after it.")
        .def("store", &Builder::store, "name"_a, "source"_a, "target"_a, "item"_a, "Copy a buffer.")
        .def("resize", &Builder::resize, "name"_a, "buffer"_a, "shape"_a, "item"_a,
             "Give a buffer a shape, and memory.")
        .def("row", &Builder::row, "name"_a, "buffer"_a, "item"_a, "index"_a, "wide"_a, "target"_a,
             "Copy the row of a buffer whose index is an int64 (`wide`) or int32 operand.")
        .def("sizes", &Builder::sizes, "name"_a, "buffer"_a, "first"_a, "last"_a, "target"_a,
             "Write the sizes of a buffer's axes [first, last).")
        .def("call", &Builder::call, "name"_a, "index"_a, "Call Python: run()'s `call` with this index.")
        .def("commit", &Builder::commit, "From this step on, the run is not interrupted.")
        .def("fail", &Builder::fail, "message"_a, "Raise Error with this message.")
        .def("branch", &Builder::branch, "name"_a, "condition"_a,
             "Add an If. Return the builders of its branches: then, else.")
        .def("loop", &Builder::loop, "name"_a, nb::kw_only(), "trips"_a, "trip_count"_a.none(), "condition"_a.none(),
             "iteration"_a.none(), "condition_before"_a.none(), "condition_after"_a.none(), "states"_a,
             "dynamic_states"_a, "slices"_a, "stacks"_a, "empty"_a.none(),
             "Add a Loop or Scan. Return the builder of its body.");
}

}  // namespace

GRAPHKIT_BINDINGS(program, "data_dependent_call") {
    follow_main_thread();
    nb::exception<NoMemory>(m, "NoMemory", m.attr("Error"));
    nb::exception<LimitReached>(m, "LimitReached", m.attr("Error"));
    bind_builder(m);
    nb::class_<BoundProgram>(m, "Program", "Prepared steps, and the locations of their operands.")
        .def(nb::init<int, std::size_t, int>(), "threads"_a, "arena_bytes"_a, "externals"_a)
        .def_prop_ro(
            "root", [](BoundProgram& program) { return Builder{&program, &program.root()}; }, nb::rv_policy::move,
            nb::keep_alive<0, 1>());

    nb::class_<BoundInstance>(m, "Instance", "The state of one run of a program at a time, in an arena.")
        .def(nb::init<nb::object>(), "program"_a)
        .def("set", &BoundInstance::set, "external"_a, "array"_a.none(),
             "Use the memory of an array, which the caller keeps alive, as external memory.")
        .def(
            "set_all", &BoundInstance::set_all, "externals"_a, "arrays"_a,
            nb::sig("def set_all(self, externals: collections.abc.Sequence[int], arrays: list[numpy.ndarray]) -> None"),
            "Call `set` for each external memory and its array.")
        .def("set_buffer", &BoundInstance::set_buffer, "buffer"_a, "array"_a, "shape"_a,
             "Make a buffer refer to an array, which the caller keeps alive.")
        .def("lend", &BoundInstance::lend, "buffer"_a, "array"_a,
             "Offer an array, which the caller keeps alive, as memory for what steps write to a buffer.")
        .def("take_back", &BoundInstance::take_back, "buffer"_a,
             "End the offer of `lend`. Return the shape of the buffer if it is in that array, else None.")
        .def("read", &BoundInstance::read, "buffer"_a, "item"_a,
             nb::sig("def read(self, buffer: int, item: int) -> tuple[memoryview, list[int]]"),
             "Return the bytes and the shape of a buffer.")
        .def("copies", &BoundInstance::copies, "buffers"_a, "dtypes"_a, "limit"_a,
             nb::sig("def copies(self, buffers: list[int], dtypes: list[numpy.dtype], limit: int) "
                     "-> list[numpy.ndarray | None]"),
             "Return a copy of the array in each buffer, or None if it has at least `limit` bytes.")
        .def("run", &BoundInstance::run, "arrays"_a, "arena"_a, "call"_a.none() = nb::none(),
             nb::sig("def run(self, arrays: list[numpy.ndarray | None], arena: numpy.ndarray, call: "
                     "collections.abc.Callable[[int], None] | None = None) -> None"),
             "Set external memory 0, 1, ... (None: unchanged), then run all steps in the arena, without the GIL.")
        .def("limit", &BoundInstance::limit, "memory"_a, "iterations"_a, "deadline"_a,
             "Limit later runs: bytes of buffers, iterations of one loop, and the time (monotonic clock, seconds) by "
             "which a run must end.")
        .def_prop_ro(
            "committed", [](BoundInstance& self) { return self.instance.committed(); },
            "Whether the current or the last run has reached its commit step.")
        .def_prop_ro(
            "part_nanoseconds", [](BoundInstance& self) { return self.instance.part_nanoseconds(); },
            "Nanoseconds of the latest part of run_parts; 0 before the first one.")
        .def(
            "trace", [](BoundInstance& self, bool on) { self.instance.trace(on); }, "on"_a)
        .def("events", &BoundInstance::events, nb::sig("def events(self) -> list[tuple[str, int, int]]"),
             "Return (name, start, end) of the steps traced since the last call, in nanoseconds.");
    m.def("run_parts", &run_parts_of, "instances"_a, "arenas"_a, "arrays"_a, "steps"_a, "parts"_a,
          nb::sig("def run_parts(instances: list[Instance], arenas: list[numpy.ndarray], arrays: list[numpy.ndarray | "
                  "None], steps: list[int], parts: int) -> None"),
          "Run the program `parts` times, on one thread for each of its instances. From part to part, external memory "
          "0, 1, ... (None: unchanged) moves by `steps` bytes.");
}

}  // namespace graphkit
