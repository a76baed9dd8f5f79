// The vector code of blake2b_lanes.h.
#include <algorithm>
#include <cstring>

#include "c_interface/blake2b_lanes.h"
#include "c_interface/blake2b_rounds.h"

namespace graphkit::blake2b {
namespace {

// The lanes that one register holds. With more, the states would not fit into the registers.
#if defined(__AVX512F__)
constexpr std::size_t kWidth = 8;
#elif defined(__AVX2__)
constexpr std::size_t kWidth = 4;
#else
constexpr std::size_t kWidth = 2;
#endif
typedef std::uint64_t Vector __attribute__((vector_size(kWidth * sizeof(std::uint64_t))));

// Mixes the lanes from `lane` on, as many as fit into a register.
void mix_lanes(std::size_t lane, std::uint64_t* states, const char* bytes, std::size_t count, std::uint64_t before,
               std::uint64_t last) {
    Vector state[8], m[16];
    for (std::size_t word = 0; word < 8; ++word) {
        std::memcpy(&state[word], states + kLanes * word + lane, sizeof(Vector));
    }
    for (std::size_t i = 0; i < count; ++i) {
        const char* const block = bytes + i * kStripe + lane * sizeof(std::uint64_t);
        for (std::size_t word = 0; word < 16; ++word) {
            std::memcpy(&m[word], block + word * kLanes * sizeof(std::uint64_t), sizeof(Vector));
        }
        compress(state, m, (before + i + 1) * (kStripe / kLanes), last);
    }
    for (std::size_t word = 0; word < 8; ++word) {
        std::memcpy(states + kLanes * word + lane, &state[word], sizeof(Vector));
    }
}

void mix(std::uint64_t* states, const char* bytes, std::size_t count, std::uint64_t before, std::uint64_t last) {
    // Few stripes at a time, so that they stay in the first cache for all lanes.
    constexpr std::size_t kAtOnce = 16;
    for (std::size_t start = 0; start < count; start += kAtOnce) {
        const std::size_t some = std::min(kAtOnce, count - start);
        for (std::size_t lane = 0; lane < kLanes; lane += kWidth) {
            mix_lanes(lane, states, bytes + start * kStripe, some, before + start, last);
        }
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(Lanes, lanes) = {mix};

}  // namespace graphkit::blake2b
