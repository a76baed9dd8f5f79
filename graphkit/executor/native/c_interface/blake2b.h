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

// Adds a hash of long contents, which is computed in eight parts at the same time. It contains their length.
void add_long(Blake2b& hash, std::string_view bytes);

}  // namespace graphkit
