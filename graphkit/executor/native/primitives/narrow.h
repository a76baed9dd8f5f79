// Rows of a few elements: what functions with a constant number of columns share.
#pragma once

#include <cstdint>
#include <type_traits>

namespace graphkit {

// Rows of 2 to this many elements are narrow.
constexpr std::int64_t kNarrow = 8;

namespace {

// Calls body with the number of columns as a constant; 2 <= columns <= kNarrow.
template <int Columns = 2, typename Body>
inline void with_columns(std::int64_t columns, Body&& body) {
    if constexpr (Columns < kNarrow) {
        if (columns > Columns) {
            return with_columns<Columns + 1>(columns, body);
        }
    }
    body(std::integral_constant<int, Columns>());
}

}  // namespace
}  // namespace graphkit
