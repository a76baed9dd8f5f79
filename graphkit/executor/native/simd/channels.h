// Access to whole and partial vectors of channels. For *.isa.cpp only.
#pragma once

#include "simd/vector.h"

namespace graphkit {
namespace {

using Lane = Vector<float>;
constexpr std::int64_t kLane = kLanes<float>;

// Access to all lanes of a vector (Whole), or to the first `count` (Part).
struct Whole {
    Lane read(const float* from) const { return load(from); }
    void write(float* to, Lane v) const { store(to, v); }
};
struct Part {
    std::int64_t count;
    Lane read(const float* from) const { return load_part(from, count, 0.0F); }
    void write(float* to, Lane v) const { store_part(to, v, count); }
};

// Calls body(first channel, access) for vectors of channels.
template <typename Body>
inline void over_channels(std::int64_t channels, Body&& body) {
    std::int64_t c = 0;
    for (; c + kLane <= channels; c += kLane) {
        body(c, Whole{});
    }
    if (c < channels) {
        body(c, Part{channels - c});
    }
}

}  // namespace
}  // namespace graphkit
