// Checks of many indices before they are used.
#pragma once

#include <cstdint>

#include "runtime/isa.h"

namespace graphkit {

// The results: `outside` is negative if an index is outside of [-size, size - 1]; `negative` is negative if an index
// is.
struct IndexSigns {
    std::int64_t outside;
    std::int64_t negative;

    bool any_outside() const { return outside < 0; }
    bool any_negative() const { return negative < 0; }
};

struct IndexTable {
    IndexSigns (*signs32)(const std::int32_t* indices, std::int64_t length, std::int64_t size);
    IndexSigns (*signs64)(const std::int64_t* indices, std::int64_t length, std::int64_t size);
};

GRAPHKIT_ISA_TABLE(IndexTable, index_table);

}  // namespace graphkit
