// What is to be known of many indices before they are used.
#pragma once

#include <cstdint>

#include "runtime/isa.h"

namespace graphkit {

// The signs of indices: whether one is outside [-size, size - 1], and whether one is negative.
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
