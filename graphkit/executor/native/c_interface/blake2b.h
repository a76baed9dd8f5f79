// BLAKE2b (RFC 7693) with 32 bytes of result: a cryptographic hash, so that different contents have different results.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace graphkit {

class Blake2b {
  public:
    Blake2b();
    void add(std::string_view bytes);
    // Returns the hash of all bytes, in hexadecimal. The object must not be used again.
    std::string hex();

  private:
    static constexpr std::size_t kBlock = 128;
    void mix(const char* block, bool is_last);

    std::array<std::uint64_t, 8> state_;
    std::array<char, kBlock> pending_{};
    std::size_t pending_bytes_ = 0;
    std::uint64_t total_ = 0;
};

// A hash of long contents, which is computed in eight parts at the same time: the length of the contents, and the words
// of eight BLAKE2b hashes with 64 bytes of result, first word 0 of each, then word 1. Part i has the words i, i + 8,
// ... of the contents, followed by zeros. The division of the contents into pieces does not change it.
class LongHash {
  public:
    LongHash();
    void add(std::string_view piece);
    // Adds the hash of all pieces to another one. The object must not be used again.
    void finish(Blake2b& hash);

  private:
    std::array<std::uint64_t, 64> states_{};
    std::uint64_t size_ = 0;
    std::string rest_;  // the end of the contents, shorter than a stripe
};

}  // namespace graphkit
