// The vector code of blake2b_lanes.h.
#include <cstring>

#include "c_interface/blake2b_lanes.h"
#include "c_interface/blake2b_rounds.h"

namespace graphkit::blake2b {
namespace {

// Of one register, or of several where registers are shorter.
typedef std::uint64_t Vector __attribute__((vector_size(kLanes * sizeof(std::uint64_t))));

void mix(std::uint64_t* states, const char* bytes, std::size_t count, std::uint64_t before, std::uint64_t last) {
    Vector state[8], m[16];
    static_assert(sizeof m == kStripe);
    std::memcpy(state, states, sizeof state);
    for (std::size_t i = 0; i < count; ++i) {
        std::memcpy(m, bytes + i * kStripe, sizeof m);
        compress(state, m, (before + i + 1) * (kStripe / kLanes), last);
    }
    std::memcpy(states, state, sizeof state);
}

}  // namespace

GRAPHKIT_ISA_DEFINE(Lanes, lanes) = {mix};

}  // namespace graphkit::blake2b
