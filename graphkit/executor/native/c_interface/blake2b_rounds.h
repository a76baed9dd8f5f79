// The compression function of BLAKE2b (RFC 7693), for one word or for a vector of independent words. Everything here
// has internal linkage, so that the linker never replaces the code of one instruction set by that of another.
#pragma once

#include <array>
#include <cstdint>

namespace graphkit::blake2b {
namespace {

constexpr int kRounds = 12;

constexpr std::array<std::uint64_t, 8> kStart{
    0x6a09e667f3bcc908U, 0xbb67ae8584caa73bU, 0x3c6ef372fe94f82bU, 0xa54ff53a5f1d36f1U,
    0x510e527fade682d1U, 0x9b05688c2b3e6c1fU, 0x1f83d9abfb41bd6bU, 0x5be0cd19137e2179U,
};

// Which words of a block each step of a round takes.
constexpr std::array<std::array<std::uint8_t, 16>, 10> kOrder{{
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
}};

template <typename Word>
void step(Word& a, Word& b, Word& c, Word& d, const Word& x, const Word& y) {
    const auto turn = [](Word& word, int by) { word = (word >> by) | (word << (64 - by)); };
    const auto half = [&](const Word& given, int turn_d, int turn_b) {
        a += b + given;
        d ^= a;
        turn(d, turn_d);
        c += d;
        b ^= c;
        turn(b, turn_b);
    };
    half(x, 32, 24);
    half(y, 16, 63);
}

// Mixes a block of 16 words into a state of 8 words. `total`: bytes of all blocks so far; `last`: all bits of the last
// block, or 0.
template <typename Word>
void compress(Word* state, const Word* m, std::uint64_t total, std::uint64_t last) {
    Word v[16];
    for (int i = 0; i < 8; ++i) {
        v[i] = state[i];
        v[i + 8] = Word{} + kStart[static_cast<std::size_t>(i)];
    }
    v[12] ^= Word{} + total;
    v[14] ^= Word{} + last;
    for (int round = 0; round < kRounds; ++round) {
        const auto& s = kOrder[static_cast<std::size_t>(round % 10)];
        step(v[0], v[4], v[8], v[12], m[s[0]], m[s[1]]);
        step(v[1], v[5], v[9], v[13], m[s[2]], m[s[3]]);
        step(v[2], v[6], v[10], v[14], m[s[4]], m[s[5]]);
        step(v[3], v[7], v[11], v[15], m[s[6]], m[s[7]]);
        step(v[0], v[5], v[10], v[15], m[s[8]], m[s[9]]);
        step(v[1], v[6], v[11], v[12], m[s[10]], m[s[11]]);
        step(v[2], v[7], v[8], v[13], m[s[12]], m[s[13]]);
        step(v[3], v[4], v[9], v[14], m[s[14]], m[s[15]]);
    }
    for (int i = 0; i < 8; ++i) {
        state[i] ^= v[i] ^ v[i + 8];
    }
}

}  // namespace
}  // namespace graphkit::blake2b
