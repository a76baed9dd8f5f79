// The size of rows whose columns are exchanged in registers.
#pragma once

#include <cstdint>

namespace graphkit {

// Rows of 2 to this many elements are narrow.
constexpr std::int64_t kNarrow = 8;

}  // namespace graphkit
