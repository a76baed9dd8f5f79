#include "c_interface/blake2b.h"

#include <algorithm>
#include <cstring>

#include "c_interface/blake2b_lanes.h"
#include "c_interface/blake2b_rounds.h"

namespace graphkit {
namespace {

constexpr std::size_t kResultBytes = 32;

// The first word of a state without a key.
constexpr std::uint64_t first_word(std::size_t result_bytes) {
    return blake2b::kStart[0] ^ 0x01010000U ^ result_bytes;
}

}  // namespace

Blake2b::Blake2b() : state_(blake2b::kStart) {
    state_[0] = first_word(kResultBytes);
}

void Blake2b::mix(const char* block, bool is_last) {
    std::array<std::uint64_t, 16> words{};
    std::memcpy(words.data(), block, kBlock);  // on machines that read saved programs, words are little-endian
    blake2b::compress(state_.data(), words.data(), total_, is_last ? ~std::uint64_t{0} : 0);
}

void Blake2b::add(std::string_view bytes) {
    while (!bytes.empty()) {
        if (pending_bytes_ == kBlock) {  // more bytes follow, so this block is not the last one
            total_ += kBlock;
            mix(pending_.data(), false);
            pending_bytes_ = 0;
        }
        const std::size_t count = std::min(kBlock - pending_bytes_, bytes.size());
        std::memcpy(pending_.data() + pending_bytes_, bytes.data(), count);
        pending_bytes_ += count;
        bytes.remove_prefix(count);
    }
}

std::string Blake2b::hex() {
    total_ += pending_bytes_;
    std::fill(pending_.begin() + static_cast<std::ptrdiff_t>(pending_bytes_), pending_.end(), '\0');
    mix(pending_.data(), true);
    std::string text;
    for (std::size_t i = 0; i < kResultBytes; ++i) {
        const auto byte = static_cast<unsigned>(state_[i / 8] >> (8 * (i % 8))) & 0xFFU;
        text += "0123456789abcdef"[byte >> 4U];
        text += "0123456789abcdef"[byte & 0xFU];
    }
    return text;
}

void add_long(Blake2b& hash, std::string_view bytes) {
    using blake2b::kLanes;
    std::array<std::uint64_t, 8 * kLanes> states{};
    for (std::size_t i = 0; i < states.size(); ++i) {
        states[i] = i < kLanes ? first_word(sizeof states / kLanes) : blake2b::kStart[i / kLanes];
    }
    const std::size_t stripes = bytes.size() / blake2b::kStripe;
    blake2b::lanes().mix(states.data(), bytes.data(), stripes, 0);
    const std::uint64_t size = bytes.size();
    hash.add({reinterpret_cast<const char*>(&size), sizeof size});
    hash.add({reinterpret_cast<const char*>(states.data()), sizeof states});
    hash.add(bytes.substr(stripes * blake2b::kStripe));
}

}  // namespace graphkit
