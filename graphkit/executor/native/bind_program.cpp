#include <memory>
#include <tuple>

#include "array.h"
#include "bindings.h"
#include "program.h"

namespace graphkit {
namespace {

using Where = std::pair<int, std::int64_t>;  // a Place as Python writes it

// A program with the Python objects that its steps refer to.
struct BoundProgram : Program {
    using Program::Program;
    BoundProgram(const BoundProgram&) = delete;
    std::vector<nb::object> kept;
};

Place place_of(const Where& where) {
    return {where.first, where.second};
}

void require_present(const std::string& step, const Kernel& kernel, const std::vector<TensorSpec>& specs,
                     const std::vector<Where>& places) {
    for (std::size_t i = 0; i < specs.size(); ++i) {
        if (!specs[i].optional && places[i].first == Place::kAbsent) {
            throw NativeError(step + ": " + kernel.describe() + " got no memory for '" + specs[i].name + "'");
        }
    }
}

// A region that is being filled.
struct Builder {
    BoundProgram* program;
    Region* region;

    std::size_t entry(const Where& where) const { return program->entry(place_of(where)); }
    std::size_t optional_entry(const std::optional<Where>& where) const { return where ? entry(*where) : Loop::kNone; }

    std::size_t entries(const std::vector<Where>& list) const {
        std::vector<Place> places;
        for (const Where& where : list) {
            places.push_back(place_of(where));
        }
        return program->entries(places);
    }

    void kernel(const std::string& name, nb::object kernel, const std::vector<Where>& inputs,
                const std::vector<Where>& outputs, const Where& scratch) const {
        Step step{Step::Kind::kernel, name};
        step.kernel = nb::cast<const Kernel*>(kernel);
        if (inputs.size() < step.kernel->inputs().size() || outputs.size() < step.kernel->outputs().size()) {
            throw NativeError(name + ": " + step.kernel->describe() + " got too few operands");
        }
        require_present(name, *step.kernel, step.kernel->inputs(), inputs);
        require_present(name, *step.kernel, step.kernel->outputs(), outputs);
        step.inputs = entries(inputs);
        step.outputs = entries(outputs);
        step.scratch = entry(scratch);
        region->steps.push_back(std::move(step));
        program->kept.push_back(std::move(kernel));
    }

    void copy(const std::string& name, const Where& source, const Where& target, std::size_t bytes) const {
        Step step{Step::Kind::copy, name};
        step.inputs = entry(source);
        step.outputs = entry(target);
        step.bytes = bytes;
        region->steps.push_back(std::move(step));
    }

    void call(const std::string& name, std::size_t index) const {
        Step step{Step::Kind::call, name};
        step.index = index;
        region->steps.push_back(std::move(step));
    }

    void fail(const std::string& message) const { region->steps.push_back(Step{Step::Kind::fail, message}); }

    std::pair<Builder, Builder> branch(const std::string& name, const Where& condition) const {
        Step step{Step::Kind::branch, name};
        step.inputs = entry(condition);
        step.index = region->branches.size();
        region->steps.push_back(std::move(step));
        Branch& made = region->branches.emplace_back();
        made.taken[0] = std::make_unique<Region>();
        made.taken[1] = std::make_unique<Region>();
        return {Builder{program, made.taken[1].get()}, Builder{program, made.taken[0].get()}};
    }

    using Carried = std::tuple<Where, Where, Where, std::optional<Where>, std::size_t>;
    using Slice = std::tuple<int, Where, std::int64_t, bool>;

    Builder loop(const std::string& name, std::int64_t trips, const std::optional<Where>& trip_count,
                 const std::optional<Where>& condition, const std::optional<Where>& iteration,
                 const std::optional<Where>& condition_before, const std::optional<Where>& condition_after,
                 const std::vector<Carried>& carried, const std::vector<Slice>& slices) const {
        Step step{Step::Kind::loop, name};
        step.index = region->loops.size();
        region->steps.push_back(std::move(step));
        Loop& made = region->loops.emplace_back();
        made.trips = trips;
        made.trip_count = optional_entry(trip_count);
        made.condition = optional_entry(condition);
        made.iteration = optional_entry(iteration);
        made.condition_before = optional_entry(condition_before);
        made.condition_after = optional_entry(condition_after);
        for (const auto& [initial, before, after, final, bytes] : carried) {
            made.carried.push_back({entry(initial), entry(before), entry(after), optional_entry(final), bytes});
        }
        for (const auto& [external, whole, stride, backwards] : slices) {
            program->use_external(external);
            made.slices.push_back({external, entry(whole), stride, backwards});
        }
        made.body = std::make_unique<Region>();
        return Builder{program, made.body.get()};
    }
};

// An instance with the arena that it runs on.
struct BoundInstance {
    nb::object program;
    nb::object arena;
    Instance instance;

    BoundInstance(nb::object owner, nb::object memory)
        : program(std::move(owner)), arena(std::move(memory)), instance(*nb::cast<BoundProgram*>(program), memory_of()) {}

    std::byte* memory_of() const {
        const Array array = open_array(arena, "arena", true);
        if (array.bytes < nb::cast<BoundProgram*>(program)->arena_bytes()) {
            throw nb::value_error("the arena is too small for the program");
        }
        return static_cast<std::byte*>(array.data);
    }

    void set(int external, nb::handle array, bool writable) {
        if (external < 0 || external >= nb::cast<BoundProgram*>(program)->externals()) {
            throw nb::index_error("the program has no such external memory");
        }
        instance.set_external(external, array.is_none() ? nullptr : open_array(array, "external", writable).data);
    }

    void run(nb::list arrays, const nb::object& call) {
        int external = 0;
        for (nb::handle array : arrays) {
            if (!array.is_none()) {
                set(external, array, false);
            }
            ++external;
        }
        const Instance::Call forward = [&](std::size_t index) {
            const nb::gil_scoped_acquire gil;
            call(index);
        };
        const std::function<void()> poll = [] {
            const nb::gil_scoped_acquire gil;
            if (PyErr_CheckSignals() != 0) {
                throw nb::python_error();
            }
        };
        const nb::gil_scoped_release no_gil;
        instance.run(forward, poll);
    }

    // (name, start, end) of each step, in nanoseconds of the monotonic clock.
    nb::list events() {
        nb::list made;
        for (const Event& event : instance.take_events()) {
            made.append(nb::make_tuple(event.step->name, event.start, event.end));
        }
        return made;
    }
};

}  // namespace

void bind_program(nb::module_& m) {
    nb::class_<Builder>(m, "Region", "Steps that are being written. An operand is (external memory, offset): -1 is the "
                                     "arena, -2 an operand that is absent.")
        .def("kernel", &Builder::kernel, "name"_a, "kernel"_a, "inputs"_a, "outputs"_a, "scratch"_a)
        .def("copy", &Builder::copy, "name"_a, "source"_a, "target"_a, "bytes"_a)
        .def("call", &Builder::call, "name"_a, "index"_a, "Call Python: run()'s `call` with this index.")
        .def("fail", &Builder::fail, "message"_a, "Raise Error: this part is not to be reached.")
        .def("branch", &Builder::branch, "name"_a, "condition"_a, "The regions of an If: then, else.")
        .def("loop", &Builder::loop, "name"_a, nb::kw_only(), "trips"_a, "trip_count"_a.none(), "condition"_a.none(),
             "iteration"_a.none(), "condition_before"_a.none(), "condition_after"_a.none(), "carried"_a, "slices"_a,
             "The region of the body of a Loop or Scan.");

    nb::class_<BoundProgram>(m, "Program", "Steps for fixed shapes, and where their operands lie.")
        .def(nb::init<int, std::size_t, int>(), "threads"_a, "arena_bytes"_a, "externals"_a)
        .def_prop_ro(
            "root", [](BoundProgram& program) { return Builder{&program, &program.root()}; }, nb::rv_policy::move,
            nb::keep_alive<0, 1>());

    nb::class_<BoundInstance>(m, "Instance", "An arena on which one run at a time of a program goes on.")
        .def(nb::init<nb::object, nb::object>(), "program"_a, "arena"_a)
        .def("set", &BoundInstance::set, "external"_a, "array"_a.none(), "writable"_a = false,
             "Make external memory that of an array, which the caller keeps alive.")
        .def("run", &BoundInstance::run, "arrays"_a, "call"_a.none() = nb::none(),
             "Set external memory 0, 1, ... (None: as it was), then run every step without the GIL.")
        .def("trace", [](BoundInstance& self, bool on) { self.instance.trace(on); }, "on"_a)
        .def("events", &BoundInstance::events, "(name, start, end) of each step since tracing was switched on.");
}

}  // namespace graphkit
