// The steps of a graph as tasks for the scheduler; see graphkit/executor/memory/plan_graph.py.
#include <unordered_set>

#include "runtime/graph_sweeps.h"
#include "runtime/pointer_table.h"

namespace graphkit {
namespace {

// Sets and tables with at most this many entries are searched from the start.
constexpr std::size_t kFew = 16;

// A set of pairs of small numbers.
class PairSet {
  public:
    // Returns whether the pair was added: it was not there.
    bool add(std::size_t first, std::size_t second) {
        if (contains(first, second)) {
            return false;
        }
        const std::uint64_t key = key_of(first, second);
        if (list_.size() < kFew) {
            list_.push_back(key);
        } else {
            more_.insert(key);
        }
        return true;
    }

    bool contains(std::size_t first, std::size_t second) const {
        const std::uint64_t key = key_of(first, second);
        return std::find(list_.begin(), list_.end(), key) != list_.end() || (!more_.empty() && more_.contains(key));
    }

  private:
    static std::uint64_t key_of(std::size_t first, std::size_t second) { return (first << 32U) | second; }

    std::vector<std::uint64_t> list_;
    std::unordered_set<std::uint64_t> more_;
};

// Returns the value of a key that must be there.
PyObject* get(nb::handle table, PyObject* key) {
    PyObject* const found = find(table, key);
    if (found == nullptr) {
        throw NativeError("a value of the graph has no storage");
    }
    return found;
}

bool is_text(PyObject* given, nb::handle wanted) {
    return given == wanted.ptr() || PyUnicode_Compare(given, wanted.ptr()) == 0;
}

// Appends the number of a value to `found`, unless the value has none or its number is there already.
class NumberList {
  public:
    explicit NumberList(nb::handle numbers) : numbers_(numbers) {}

    void add(PyObject* value) {
        PyObject* const number = find(numbers_, value);
        // Each number is one object, because the table has one entry for each.
        if (number != nullptr && is_new(number)) {
            found_.push_back(number);
        }
    }

    nb::object tuple() const {
        nb::object made = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(found_.size())));
        require(made.is_valid());
        for (std::size_t i = 0; i < found_.size(); ++i) {
            PyTuple_SET_ITEM(made.ptr(), static_cast<Py_ssize_t>(i), Py_NewRef(found_[i]));
        }
        return made;
    }

    void clear() {
        found_.clear();
        seen_ = PointerTable();
    }

  private:
    bool is_new(PyObject* number) {
        if (found_.size() < kFew) {
            return std::find(found_.begin(), found_.end(), number) == found_.end();
        }
        for (std::size_t i = seen_.size(); i < found_.size(); ++i) {
            seen_.add(found_[i]);
        }
        return !seen_.contains(number);
    }

    nb::handle numbers_;
    std::vector<PyObject*> found_;
    PointerTable seen_;
};

}  // namespace

// Returns the storages of the operands of each step.
nb::list GraphSweeps::storages_read(const nb::tuple& steps, const nb::dict& root) const {
    nb::list found;
    for (const nb::handle step : steps) {
        PyObject* const given = inputs(step.ptr());
        nb::list storages;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i) {
            PyObject* const operand = PyTuple_GET_ITEM(given, i);
            if (operand != Py_None) {
                require(PyList_Append(storages.ptr(), get(root, operand)) == 0);
            }
        }
        append(found, storages);
    }
    return found;
}

// Returns the number of a type; see `TensorType.number`.
nb::object GraphSweeps::type_number(PyObject* type) const {
    if (!is_tensor(type)) {
        throw NativeError("a value is not a tensor");
    }
    PyObject* const known = number_of_type.peek(type);
    return known != nullptr ? nb::borrow(known) : nb::object(nb::handle(type).attr("number"));
}

// Returns what the kernel of one step depends on; see `SharedKernels`.
nb::object GraphSweeps::kernel_key(PyObject* step, const nb::dict& root, const nb::dict& known,
                                   const nb::frozenset& used, const nb::callable& number_of,
                                   const nb::callable& identity) const {
    PyObject* const given = inputs(step);
    PyObject* const results = outputs_of.get(step);
    const Py_ssize_t operands = PyTuple_GET_SIZE(given);
    const Py_ssize_t outputs = PyTuple_GET_SIZE(results);
    nb::object key = nb::steal(PyTuple_New(1 + 3 * operands + 2 * outputs));
    require(key.is_valid());
    Py_ssize_t next = 0;
    const auto add = [&](const nb::object& part) { PyTuple_SET_ITEM(key.ptr(), next++, Py_NewRef(part.ptr())); };
    const nb::handle op = op_of.get(step);
    const nb::object number = operators_.number(op.ptr());
    add(number.is_valid() ? number : number_of(op));
    PointerTable places;
    for (Py_ssize_t position = 0; position < operands; ++position) {
        PyObject* const operand = PyTuple_GET_ITEM(given, position);
        PyObject* const type = operand == Py_None ? nullptr : type_of.get(checked(operand, value_));
        if (type == nullptr || !is_tensor(type)) {
            for (int part = 0; part < 3; ++part) {
                add(nb::none());
            }
            continue;
        }
        const auto [place, is_new] = places.add(operand);
        if (is_new) {
            *place = static_cast<std::uint32_t>(position);
        }
        add(type_number(type));
        add(nb::int_(*place));
        PyObject* const storage = find(root, operand);
        PyObject* const array = storage == nullptr ? nullptr : find(known, storage);
        add(array == nullptr ? nb::none() : identity(nb::handle(operand), nb::handle(type), nb::handle(array)));
    }
    for (Py_ssize_t i = 0; i < outputs; ++i) {
        PyObject* const output = PyTuple_GET_ITEM(results, i);
        PyObject* const type = type_of.get(checked(output, value_));
        add(is_tensor(type) ? type_number(type) : nb::none());
        add(nb::bool_(contains(used, output)));
    }
    return key;
}

// Returns what the kernels of the steps depend on. number_of, identity: Python functions.
nb::list GraphSweeps::kernel_keys(const nb::tuple& steps, const nb::dict& root, const nb::dict& known,
                                  const nb::frozenset& used, const nb::callable& number_of,
                                  const nb::callable& identity) const {
    nb::list found;
    for (const nb::handle step : steps) {
        append(found, kernel_key(step.ptr(), root, known, used, number_of, identity));
    }
    return found;
}

// The answers of a Python function about types, which is called once for each type.
class GraphSweeps::TypeFacts {
  public:
    TypeFacts(const Slot& type_of, nb::handle function) : type_of_(type_of), function_(function) {}

    // Returns what the function says about a value; it must depend on the type only.
    bool holds(PyObject* value) {
        const auto [known, is_new] = known_.add(type_of_.get(value));
        if (is_new) {
            const bool answer = nb::cast<bool>(function_(nb::handle(value)));
            *known = answer ? 1 : 0;
        }
        return *known != 0;
    }

  private:
    const Slot& type_of_;
    nb::handle function_;
    PointerTable known_;
};

// Returns the pairs (storage read, output) of one step that may share memory; see `_inplace_pairs`.
nb::list GraphSweeps::inplace_pairs_of(PyObject* step, const nb::handle& permitted, const Places& places,
                                       TypeFacts& is_sized) const {
    nb::list found;
    const nb::object list = nb::steal(PySequence_Fast(permitted.ptr(), "pairs of positions are not a sequence"));
    require(list.is_valid());
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(list.ptr());
    if (count == 0) {
        return found;
    }
    PyObject* const given = inputs(step);
    PyObject* const results = outputs_of.get(step);
    const auto operands = static_cast<std::size_t>(PyTuple_GET_SIZE(given));
    // For each operand: its storage, and the next operand with the same storage. For each storage: its first operand.
    std::vector<PyObject*> storages(operands);
    std::vector<std::size_t> next(operands, operands);
    std::vector<std::size_t> first(operands);
    PointerTable firsts;
    for (std::size_t i = operands; i-- > 0;) {
        PyObject* const operand = PyTuple_GET_ITEM(given, static_cast<Py_ssize_t>(i));
        storages[i] = operand == Py_None ? nullptr : get(places.root, operand);
        if (storages[i] != nullptr) {
            const auto [place, is_new] = firsts.add(storages[i]);
            next[i] = is_new ? operands : *place;
            *place = static_cast<std::uint32_t>(i);
        }
    }
    PairSet allowed;
    std::vector<std::pair<std::size_t, std::size_t>> pairs;
    for (Py_ssize_t i = 0; i < count; ++i) {
        pairs.push_back(
            nb::cast<std::pair<std::size_t, std::size_t>>(nb::handle(PySequence_Fast_GET_ITEM(list.ptr(), i))));
        allowed.add(pairs.back().first, pairs.back().second);
    }
    PairSet seen;
    for (const auto& [position, index] : pairs) {
        if (position >= operands || index >= static_cast<std::size_t>(PyTuple_GET_SIZE(results))) {
            continue;
        }
        PyObject* const operand = PyTuple_GET_ITEM(given, static_cast<Py_ssize_t>(position));
        PyObject* const output = PyTuple_GET_ITEM(results, static_cast<Py_ssize_t>(index));
        if (operand == Py_None || !contains(places.used, output) || !is_sized.holds(operand)) {
            continue;
        }
        PyObject* const storage = storages[position];
        PyObject* const place = get(places.place, storage);
        const std::size_t start = *firsts.add(storage).first;
        if (!(is_text(place, places.arena) || is_text(place, places.parameter)) || !seen.add(start, index)) {
            continue;
        }
        bool is_fitting = true;
        for (std::size_t i = start; i < operands && is_fitting; i = next[i]) {
            PyObject* const reader = PyTuple_GET_ITEM(given, static_cast<Py_ssize_t>(i));
            is_fitting = allowed.contains(i, index) &&
                         (is_same_kind(type_of.get(reader), type_of.get(output)) ||
                          nb::cast<bool>(places.has_equal_size(nb::handle(reader), nb::handle(output))));
        }
        if (is_fitting) {
            append(found, nb::make_tuple(nb::handle(storage), nb::handle(output)));
        }
    }
    return found;
}

// Returns the pairs (storage read, output) of each step that may share memory.
//
// permitted: For each step, pairs of positions (input, output). is_sized, has_equal_size: Python functions.
nb::list GraphSweeps::inplace_pairs(const nb::tuple& steps, const nb::dict& root, const nb::dict& place,
                                    const nb::frozenset& used, const nb::list& permitted, const nb::callable& is_sized,
                                    const nb::callable& has_equal_size) const {
    const nb::object arena = nb::steal(PyUnicode_InternFromString("arena"));
    const nb::object parameter = nb::steal(PyUnicode_InternFromString("parameter"));
    const Places places{root, place, used, arena, parameter, has_equal_size};
    TypeFacts sized(type_of, is_sized);
    nb::list found;
    if (permitted.size() != steps.size()) {
        throw NativeError("the lists do not have one entry for each step");
    }
    std::size_t index = 0;
    for (const nb::handle step : steps) {
        append(found, inplace_pairs_of(step.ptr(), permitted[index++], places, sized));
    }
    return found;
}

// Returns the tasks of the steps; see `_Planning._task`.
//
// storages: The result of `storages_read`. elements: for steps that do not read the elements of all operands, the
// storages whose elements they read. pairs: the result of `inplace_pairs`, or None. scratch: for each step, the bytes
// of its working memory.
nb::list GraphSweeps::tasks(nb::handle task_class, const nb::tuple& steps, const nb::list& storages,
                            const nb::dict& elements, const nb::dict& extra, nb::handle pairs, const nb::list& scratch,
                            const nb::dict& numbers, const nb::dict& place) const {
    auto* const task_type = reinterpret_cast<PyTypeObject*>(task_class.ptr());
    if (!PyType_IsSubtype(task_type, &PyTuple_Type)) {
        throw NativeError("the class of tasks is not a tuple");
    }
    const nb::object arena = nb::steal(PyUnicode_InternFromString("arena"));
    NumberList list(numbers);
    const auto numbers_of = [&](nb::handle values, nb::handle further = nb::handle()) {
        list.clear();
        for (const nb::handle value : nb::cast<nb::list>(values)) {
            list.add(value.ptr());
        }
        if (further.is_valid()) {
            for (const nb::handle value : nb::cast<nb::list>(further)) {
                list.add(value.ptr());
            }
        }
        return list.tuple();
    };
    nb::list found;
    if (storages.size() != steps.size() || scratch.size() != steps.size() ||
        (!pairs.is_none() && nb::cast<nb::list>(pairs).size() != steps.size())) {
        throw NativeError("the lists do not have one entry for each step");
    }
    for (std::size_t index = 0; index < steps.size(); ++index) {
        const nb::handle step = steps[index];
        const nb::handle read = storages[index];
        PyObject* const more = find(extra, step.ptr());
        PyObject* const other = PyDict_GET_SIZE(elements.ptr()) == 0 ? nullptr : find(elements, step.ptr());
        const nb::object all = numbers_of(read);
        const nb::object reads = other == nullptr ? all : numbers_of(other);
        const nb::object after = more == nullptr ? all : numbers_of(read, more);
        list.clear();
        PyObject* const results = outputs_of.get(step.ptr());
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(results); ++i) {
            list.add(PyTuple_GET_ITEM(results, i));
        }
        nb::list shared;
        if (!pairs.is_none()) {
            for (const nb::handle pair : nb::cast<nb::list>(nb::cast<nb::list>(pairs)[index])) {
                if (!PyTuple_Check(pair.ptr()) || PyTuple_GET_SIZE(pair.ptr()) != 2) {
                    throw NativeError("values that may share memory are not a pair");
                }
                PyObject* const source = PyTuple_GET_ITEM(pair.ptr(), 0);
                PyObject* const number = is_text(get(place, source), arena) ? find(numbers, source) : nullptr;
                if (number != nullptr) {
                    append(shared, nb::make_tuple(nb::handle(number),
                                                  nb::handle(get(numbers, PyTuple_GET_ITEM(pair.ptr(), 1)))));
                }
            }
        }
        nb::object task = nb::steal(task_type->tp_alloc(task_type, 5));
        require(task.is_valid());
        PyTuple_SET_ITEM(task.ptr(), 0, Py_NewRef(reads.ptr()));
        PyTuple_SET_ITEM(task.ptr(), 1, list.tuple().release().ptr());
        PyTuple_SET_ITEM(task.ptr(), 2, Py_NewRef(after.ptr()));
        PyTuple_SET_ITEM(task.ptr(), 3, nb::tuple(shared).release().ptr());
        PyTuple_SET_ITEM(task.ptr(), 4, Py_NewRef(nb::object(scratch[index]).ptr()));
        append(found, task);
    }
    return found;
}

// Returns extra dependencies of the steps that overwrite states; see `reader_dependencies` in donation.py.
//
// elements: see `tasks`.
nb::dict GraphSweeps::reader_dependencies(const nb::tuple& steps, const nb::list& storages, const nb::dict& elements,
                                          const nb::frozenset& used, const nb::dict& donated) const {
    nb::dict found;
    if (storages.size() != steps.size()) {
        throw NativeError("the lists do not have one entry for each step");
    }
    for (std::size_t index = 0; index < steps.size(); ++index) {
        const nb::handle step = steps[index];
        PyObject* const other = PyDict_GET_SIZE(elements.ptr()) == 0 ? nullptr : find(elements, step.ptr());
        PyObject* result = nullptr;
        for (const nb::handle storage : nb::cast<nb::list>(other == nullptr ? nb::handle(storages[index]) : other)) {
            PyObject* const target = find(donated, storage.ptr());
            PyObject* const writer = target == nullptr ? nullptr : producer(target);
            if (writer == nullptr || writer == step.ptr()) {
                continue;
            }
            PyObject* const results = outputs_of.get(step.ptr());
            for (Py_ssize_t i = 0; result == nullptr && i < PyTuple_GET_SIZE(results); ++i) {
                PyObject* const output = PyTuple_GET_ITEM(results, i);
                result = contains(used, output) ? output : nullptr;
            }
            if (result == nullptr) {
                throw NativeError("nothing reads the results of a step");
            }
            PyObject* list = find(found, writer);
            if (list == nullptr) {
                nb::list made;
                require(PyDict_SetItem(found.ptr(), writer, made.ptr()) == 0);
                list = made.ptr();
            }
            const Py_ssize_t size = PyList_GET_SIZE(list);
            if (size == 0 || PyList_GET_ITEM(list, size - 1) != result) {
                require(PyList_Append(list, result) == 0);
            }
        }
    }
    return found;
}

}  // namespace graphkit
