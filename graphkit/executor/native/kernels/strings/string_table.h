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
    // `numbers`: a dict from strings to their numbers. Other strings have the number `other`. Raises TypeError if a key
    // is not a string.
    StringTable(const StringNumbers& numbers, std::int64_t other);

    // Writes the number of each element of `x`, an array of Python objects, to `numbers`, an array of int64 with the
    // same number of elements. The GIL must be held. Raises TypeError if an element is not a string.
    void find(nb::handle x, nb::handle numbers) const;

    // Returns the number of a string. The GIL must be held. Raises TypeError if the object is not a string.
    std::int64_t number(PyObject* string) const;

  private:
    struct Entry {
        PyObject* key = nullptr;
        Py_hash_t hash = 0;
        std::int64_t number = 0;
    };

    // Returns the index of a string's entry, or of the free entry where it belongs.
    std::size_t slot(PyObject* string, Py_hash_t hash) const;

    std::vector<nb::object> keys_;  // references to the keys of the entries
    std::vector<Entry> entries_;    // a free entry has the number `other`
};

}  // namespace graphkit
