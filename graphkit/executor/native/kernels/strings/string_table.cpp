#include "kernels/strings/string_table.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/array.h"

namespace graphkit {
namespace {

// Python strings have a canonical representation, with the fewest bytes per character, so equal strings have equal
// bytes.
bool equal(PyObject* a, PyObject* b) {
    const Py_ssize_t length = PyUnicode_GET_LENGTH(a);
    const auto kind = PyUnicode_KIND(a);
    return length == PyUnicode_GET_LENGTH(b) && kind == PyUnicode_KIND(b) &&
           std::memcmp(PyUnicode_DATA(a), PyUnicode_DATA(b),
                       static_cast<std::size_t>(length) * static_cast<std::size_t>(kind)) == 0;
}

// Python caches the hash in the string, so it is computed once.
Py_hash_t hash_of(PyObject* string) {
    require_string(string);
    const Py_hash_t hash = PyObject_Hash(string);
    if (hash == -1) {
        throw nb::python_error();
    }
    return hash;
}

template <typename Character>
bool has_surrogate(PyObject* string) {
    const auto* text = static_cast<const Character*>(PyUnicode_DATA(string));
    return std::any_of(text, text + PyUnicode_GET_LENGTH(string),
                       [](Character c) { return c >= 0xd800 && c < 0xe000; });
}

// Surrogates are the only characters that UTF-8 cannot encode.
bool is_encodable(PyObject* string) {
    switch (PyUnicode_KIND(string)) {
        case PyUnicode_1BYTE_KIND:
            return true;
        case PyUnicode_2BYTE_KIND:
            return !has_surrogate<Py_UCS2>(string);
        default:
            return !has_surrogate<Py_UCS4>(string);
    }
}

}  // namespace

StringTable::StringTable(const StringNumbers& numbers, std::int64_t other)
    : entries_(std::bit_ceil(2 * numbers.size() + 1), Entry{nullptr, 0, other}) {
    keys_.reserve(numbers.size());
    for (const auto& [key, number] : numbers) {
        const Py_hash_t hash = hash_of(key.ptr());
        keys_.push_back(nb::borrow(key));
        entries_[slot(key.ptr(), hash)] = {key.ptr(), hash, nb::cast<std::int64_t>(number)};
    }
}

void StringTable::find(nb::handle x, nb::handle numbers) const {
    const Objects strings = open_objects(x, "x", false);
    const Array found = open_array(numbers, "numbers", true);
    if (found.bytes != strings.count * sizeof(std::int64_t)) {
        throw nb::value_error("'numbers' is not an int64 for each element of 'x'");
    }
    auto* const out = static_cast<std::int64_t*>(found.data);
    for (std::size_t i = 0; i < strings.count; ++i) {
        out[i] = number(strings.data[i]);
    }
}

std::int64_t StringTable::number(PyObject* string) const {
    return entries_[slot(string, hash_of(string))].number;
}

std::size_t StringTable::slot(PyObject* string, Py_hash_t hash) const {
    const std::size_t mask = entries_.size() - 1;
    std::size_t at = static_cast<std::size_t>(hash) & mask;
    while (true) {
        const Entry& entry = entries_[at];
        if (entry.key == nullptr || entry.key == string || (entry.hash == hash && equal(entry.key, string))) {
            return at;
        }
        at = (at + 1) & mask;
    }
}

}  // namespace graphkit

GRAPHKIT_BINDINGS(string_table) {
    using namespace graphkit;
    nb::class_<StringTable>(m, "StringTable",
                            "A map from strings to numbers; all other strings have the number `other`.")
        .def(nb::init<StringNumbers, std::int64_t>(), "numbers"_a, "other"_a)
        .def("find", &StringTable::find, "x"_a, "numbers"_a, "Write the number of each string to an int64 array.");
    m.def(
        "are_texts",
        [](nb::handle x) {
            const Objects objects = open_objects(x, "x", false);
            return std::all_of(objects.data, objects.data + objects.count, [](PyObject* object) {
                return object != nullptr && PyUnicode_CheckExact(object) && is_encodable(object);
            });
        },
        "x"_a, "Whether every element of a contiguous array of Python objects is a str that UTF-8 can encode.");
}
