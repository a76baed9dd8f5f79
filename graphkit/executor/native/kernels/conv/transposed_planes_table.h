// Sums of the products of a transposed convolution in the standard layout, compiled for several instruction sets.
#pragma once

#include <cstdint>

#include "runtime/isa.h"

namespace graphkit {

// Floats before and behind the products that may be read, but are not used.
constexpr std::int64_t kTransposedMargin = 16;

// Products of one tap with a line of x. The product with element i is at products[offset + i], and is added to position
// (i + shift) * stride + phase of a line of the result, counted from `begin` positions before its first one.
struct TransposedTerm {
    std::int64_t offset;
    std::int64_t shift;
};

// A line of the result of one filter: the bias plus some terms.
struct TransposedSum {
    const float* products;        // of the filter
    const TransposedTerm* terms;  // ordered by phase
    const std::int64_t* begins;   // the terms of phase p are begins[p] to begins[p + 1]
    std::int64_t most_shift;
    std::int64_t elements;        // of a line of x
    std::int64_t stride;
    std::int64_t begin;
    float bias;
    float* y;
    std::int64_t count;
};

struct TransposedPlanesTable {
    void (*add_up)(const TransposedSum& sum);
};

GRAPHKIT_ISA_TABLE(TransposedPlanesTable, transposed_planes_table);

}  // namespace graphkit
