// Eight BLAKE2b states in the lanes of a vector, so that a processor hashes several bytes a cycle.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/isa.h"

namespace graphkit::blake2b {

constexpr std::size_t kLanes = 8;
constexpr std::size_t kStripe = kLanes * 128;  // a block of each lane: lane i has words i, i + 8, ...

struct Lanes {
    // Mixes `count` stripes into the states: states[8 * word + lane]. `before`: stripes that were mixed earlier.
    // `last`: that of `compress`.
    void (*mix)(std::uint64_t* states, const char* bytes, std::size_t count, std::uint64_t before, std::uint64_t last);
};

GRAPHKIT_ISA_TABLE(Lanes, lanes);

}  // namespace graphkit::blake2b
