// Words that are runs of certain ASCII characters, such as the matches of [a-zA-Z0-9_]+.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/array.h"

namespace graphkit {
namespace {

// A map from ASCII words to numbers; other words have the number -1.
class WordTable {
  public:
    using Numbers = nb::typed<nb::dict, nb::str, std::int64_t>;

    explicit WordTable(const Numbers& numbers) {
        for (const auto& [word, number] : numbers) {
            numbers_.emplace(nb::cast<std::string>(word), nb::cast<std::int64_t>(number));
        }
    }

    std::int64_t number(std::string_view word) const {
        const auto found = numbers_.find(word);
        return found == numbers_.end() ? -1 : found->second;
    }

  private:
    struct Hash {
        using is_transparent = void;
        std::size_t operator()(std::string_view word) const { return std::hash<std::string_view>{}(word); }
    };

    std::unordered_map<std::string, std::int64_t, Hash, std::equal_to<>> numbers_;
};

class CharacterRuns {
  public:
    // Finds the runs of at least `least` of the given `characters` in each string of `x`.
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

    // Returns the largest number of runs in a string.
    std::size_t longest() const { return longest_; }

    // Writes the runs of string i, followed by `pad` up to the end of the row, to row i of `rows`, an array of Python
    // objects. If `marks` are given, they are written before and after the runs.
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

    // Like write, with numbers instead of words: `rows` is an array of int64.
    void number(const WordTable& table, nb::handle rows, std::int64_t pad,
                std::optional<std::pair<std::int64_t, std::int64_t>> marks) const {
        const Objects strings = open_objects(x_, "x", false);
        const Array out = open_array(rows, "rows", true);
        const std::size_t width = longest_ + (marks ? 2 : 0);
        if (strings.count != ends_.size() || out.bytes != width * strings.count * sizeof(std::int64_t)) {
            throw nb::value_error("'rows' does not have a row for each string");
        }
        auto* to = static_cast<std::int64_t*>(out.data);
        std::string narrow;
        std::size_t run = 0;
        for (std::size_t i = 0; i < strings.count; ++i) {
            std::int64_t* const end = to + width;
            if (marks) {
                *to++ = marks->first;
            }
            for (; run < ends_[i]; ++run) {
                *to++ = table.number(characters(strings.data[i], runs_[run], narrow));
            }
            if (marks) {
                *to++ = marks->second;
            }
            to = std::fill_n(to, end - to, pad);
        }
    }

  private:
    struct Run {
        Py_ssize_t first, end;
    };

    // Returns the characters of a run, which are ASCII. If the string has wider characters elsewhere, they are copied
    // to `narrow`.
    static std::string_view characters(PyObject* string, const Run& run, std::string& narrow) {
        const auto length = static_cast<std::size_t>(run.end - run.first);
        if (PyUnicode_KIND(string) == PyUnicode_1BYTE_KIND) {
            return {reinterpret_cast<const char*>(PyUnicode_1BYTE_DATA(string)) + run.first, length};
        }
        narrow.resize(length);
        for (std::size_t i = 0; i < length; ++i) {
            narrow[i] = static_cast<char>(PyUnicode_READ_CHAR(string, run.first + static_cast<Py_ssize_t>(i)));
        }
        return narrow;
    }

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
    std::vector<std::size_t> ends_;  // for each string, the number of runs in it and in all strings before it
    std::size_t longest_ = 0;
};

}  // namespace
}  // namespace graphkit

GRAPHKIT_BINDINGS(character_runs) {
    using namespace graphkit;
    nb::class_<WordTable>(m, "WordTable", "A map from ASCII words to numbers; other words have the number -1.")
        .def(nb::init<const WordTable::Numbers&>(), "numbers"_a);
    nb::class_<CharacterRuns>(m, "CharacterRuns", "The runs of certain characters in each of an array's strings.")
        .def(
            "__init__",
            [](CharacterRuns* made, nb::object x, Text characters, std::int64_t least) {
                new (made) CharacterRuns(std::move(x), characters, least);
            },
            "x"_a, "characters"_a, "least"_a)
        .def_prop_ro("longest", &CharacterRuns::longest, "The largest number of runs in a string.")
        .def("write", &CharacterRuns::write, "rows"_a, "pad"_a, "marks"_a.none(),
             "Write the runs of each string, between the marks, and then pads, to a row of an array of objects.")
        .def("number", &CharacterRuns::number, "table"_a, "rows"_a, "pad"_a, "marks"_a.none(),
             "Like `write`, with numbers instead of words, to an int64 array.");
}
