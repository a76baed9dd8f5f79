// Words that are runs of certain ASCII characters, such as those that [a-zA-Z0-9_]+ matches.
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/array.h"

namespace graphkit {
namespace {

class CharacterRuns {
  public:
    // Finds the runs of `characters` in each string of `x` that have at least `least` characters.
    CharacterRuns(nb::object x, std::string_view characters, std::int64_t least) : x_(std::move(x)), least_(least) {
        for (const char c : characters) {
            if (static_cast<unsigned char>(c) >= allowed_.size()) {
                throw nb::value_error("'characters' are not ASCII");
            }
            allowed_[static_cast<std::size_t>(c)] = true;
        }
        const Objects strings = open_objects(x_, "x", false);
        ends_.reserve(strings.count);
        for (std::size_t i = 0; i < strings.count; ++i) {
            require_string(strings.data[i]);
            find(strings.data[i]);
            const std::size_t first = ends_.empty() ? 0 : ends_.back();
            longest_ = std::max(longest_, runs_.size() - first);
            ends_.push_back(runs_.size());
        }
    }

    // The largest number of runs in a string.
    std::size_t longest() const { return longest_; }

    // Writes the runs of string i to row i of `rows`, an array of Python objects; then `pad`. If `marks` are given, the
    // runs stand between the two.
    void write(nb::handle rows, nb::handle pad, std::optional<std::pair<nb::object, nb::object>> marks) const {
        const Objects strings = open_objects(x_, "x", false);
        const Objects out = open_objects(rows, "rows", true);
        const std::size_t width = longest_ + (marks ? 2 : 0);
        if (strings.count != ends_.size() || out.count != width * strings.count) {
            throw nb::value_error("'rows' does not have a row for each string");
        }
        PyObject** to = out.data;
        std::size_t run = 0;
        for (std::size_t i = 0; i < strings.count; ++i) {
            PyObject** const end = to + width;
            if (marks) {
                put(to++, nb::object(marks->first).release().ptr());
            }
            for (; run < ends_[i]; ++run) {
                PyObject* const word = PyUnicode_Substring(strings.data[i], runs_[run].first, runs_[run].end);
                if (word == nullptr) {
                    throw nb::python_error();
                }
                put(to++, word);
            }
            if (marks) {
                put(to++, nb::object(marks->second).release().ptr());
            }
            while (to < end) {
                put(to++, nb::borrow(pad).release().ptr());
            }
        }
    }

  private:
    struct Run {
        Py_ssize_t first, end;
    };

    static void put(PyObject** at, PyObject* stolen) {
        PyObject* const before = *at;
        *at = stolen;
        Py_XDECREF(before);
    }

    void find(PyObject* string) {
        const Py_ssize_t length = PyUnicode_GET_LENGTH(string);
        const void* data = PyUnicode_DATA(string);
        switch (PyUnicode_KIND(string)) {
            case PyUnicode_1BYTE_KIND:
                return scan(static_cast<const Py_UCS1*>(data), length);
            case PyUnicode_2BYTE_KIND:
                return scan(static_cast<const Py_UCS2*>(data), length);
            default:
                return scan(static_cast<const Py_UCS4*>(data), length);
        }
    }

    template <typename Character>
    void scan(const Character* text, Py_ssize_t length) {
        const auto is_allowed = [&](Character c) { return c < allowed_.size() && allowed_[c]; };
        for (Py_ssize_t at = 0; at < length;) {
            if (!is_allowed(text[at])) {
                ++at;
                continue;
            }
            const Py_ssize_t first = at;
            while (at < length && is_allowed(text[at])) {
                ++at;
            }
            if (at - first >= least_) {
                runs_.push_back({first, at});
            }
        }
    }

    nb::object x_;
    Py_ssize_t least_;
    std::array<bool, 128> allowed_{};
    std::vector<Run> runs_;
    std::vector<std::size_t> ends_;  // of each string: how many runs it and those before it have
    std::size_t longest_ = 0;
};

}  // namespace
}  // namespace graphkit

GRAPHKIT_BINDINGS(character_runs) {
    using namespace graphkit;
    nb::class_<CharacterRuns>(m, "CharacterRuns", "The runs of certain characters in each of an array's strings.")
        .def(
            "__init__",
            [](CharacterRuns* made, nb::object x, Text characters, std::int64_t least) {
                new (made) CharacterRuns(std::move(x), characters, least);
            },
            "x"_a, "characters"_a, "least"_a)
        .def_prop_ro("longest", &CharacterRuns::longest, "The largest number of runs in a string.")
        .def("write", &CharacterRuns::write, "rows"_a, "pad"_a, "marks"_a.none(),
             "Write the runs of each string to a row of an array of objects, between the marks, and then the pad.");
}
