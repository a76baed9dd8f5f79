// The inner loop of NonMaxSuppression, compiled for several instruction sets.
#pragma once

#include <cstdint>

#include "runtime/isa.h"

namespace graphkit {

// The boxes that are already selected, in rows y1, x1, y2, x2, area. Each row has `room` elements, and `count` of them
// are used. Further elements up to a whole vector can be read; their areas are NaN.
struct ChosenBoxes {
    float* rows;
    std::int64_t room;
    std::int64_t count;
};

struct SuppressionTable {
    // Whether the intersection of the box (five numbers) with a selected box is more than `overlap` times their union.
    // NaN counts as not more.
    bool (*is_hidden)(const ChosenBoxes& chosen, const float* box, float overlap);
};

GRAPHKIT_ISA_TABLE(SuppressionTable, suppression_table);

}  // namespace graphkit
