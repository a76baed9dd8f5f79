// A hash table from Python strings to numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/bindings.h"

namespace graphkit {

using StringNumbers = nb::typed<nb::dict, nb::str, std::int64_t>;

class StringTable {
  public:
    // `numbers`: for each key, a string, its number. Strings that are no key have the number `other`. Raises TypeError
    // for a key that is not a string.
    StringTable(const StringNumbers& numbers, std::int64_t other);

    // Writes the number of each element of `x`, an array of Python objects, to `numbers`, one of int64 with as many
    // elements. The interpreter is held. Raises TypeError for an element that is not a string.
    void find(nb::handle x, nb::handle numbers) const;

    // The number of an object. The interpreter is held. Raises TypeError unless it is a string.
    std::int64_t number(PyObject* string) const;

  private:
    struct Entry {
        PyObject* key = nullptr;
        Py_hash_t hash = 0;
        std::int64_t number = 0;
    };

    // The entry of a string, or the free one where it belongs.
    std::size_t slot(PyObject* string, Py_hash_t hash) const;

    std::vector<nb::object> keys_;  // own what the entries point to
    std::vector<Entry> entries_;    // a free one has the number of other strings
};

}  // namespace graphkit
