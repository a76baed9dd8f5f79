#include "c_interface/blake2b.h"

#include <algorithm>
#include <cstring>

#include "c_interface/blake2b_lanes.h"
#include "c_interface/blake2b_rounds.h"

namespace graphkit {
namespace {

constexpr std::size_t kResultBytes = 32;
constexpr std::uint64_t kLast = ~std::uint64_t{0};

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
    blake2b::compress(state_.data(), words.data(), total_, is_last ? kLast : 0);
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

LongHash::LongHash() {
    static_assert(sizeof states_ == 8 * blake2b::kLanes * sizeof(std::uint64_t));
    for (std::size_t i = 0; i < states_.size(); ++i) {
        states_[i] =
            i < blake2b::kLanes ? first_word(sizeof states_ / blake2b::kLanes) : blake2b::kStart[i / blake2b::kLanes];
    }
}

void LongHash::add(std::string_view piece) {
    const auto mix = [&](const char* bytes, std::size_t count) {
        blake2b::lanes().mix(states_.data(), bytes, count, size_ / blake2b::kStripe, 0);
        size_ += count * blake2b::kStripe;
    };
    size_ -= rest_.size();  // a multiple of a stripe
    if (!rest_.empty()) {
        const std::size_t count = std::min(blake2b::kStripe - rest_.size(), piece.size());
        rest_.append(piece.substr(0, count));
        piece.remove_prefix(count);
        if (rest_.size() == blake2b::kStripe) {
            mix(rest_.data(), 1);
            rest_.clear();
        }
    }
    const std::size_t stripes = piece.size() / blake2b::kStripe;
    mix(piece.data(), stripes);
    rest_.append(piece.substr(stripes * blake2b::kStripe));
    size_ += rest_.size();
}

void LongHash::finish(Blake2b& hash) {
    const std::uint64_t before = size_ / blake2b::kStripe;
    rest_.resize(blake2b::kStripe, '\0');
    blake2b::lanes().mix(states_.data(), rest_.data(), 1, before, kLast);
    hash.add({reinterpret_cast<const char*>(&size_), sizeof size_});
    hash.add({reinterpret_cast<const char*>(states_.data()), sizeof states_});
}

}  // namespace graphkit
