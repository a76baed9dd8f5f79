// The inner loop of NonMaxSuppression, compiled for several instruction sets.
#pragma once

#include <cstdint>

#include "runtime/isa.h"

namespace graphkit {

// Boxes that are chosen already: rows y1, x1, y2, x2, area, each `room` long, of which `count` are there and so many
// more readable, with areas that are NaN, as make up whole vectors.
struct ChosenBoxes {
    float* rows;
    std::int64_t room;
    std::int64_t count;
};

struct SuppressionTable {
    // Whether the box, a row of five, shares more than `overlap` of the union with a chosen one. NaN is no more.
    bool (*is_hidden)(const ChosenBoxes& chosen, const float* box, float overlap);
};

GRAPHKIT_ISA_TABLE(SuppressionTable, suppression_table);

}  // namespace graphkit
