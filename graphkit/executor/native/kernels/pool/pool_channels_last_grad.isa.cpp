// The channels of one pooling window with the place of its maximum, and of one position of a gradient.
#include "kernels/pool/pool_channels_last_grad.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

using Lane = Vector<float>;
constexpr std::int64_t kLane = kLanes<float>;
using Ints = Vector<std::int32_t>;
using Bytes = VectorOf<std::uint8_t, kLane>::type;

// Calls body(first channel, how many) for vectors of channels. The last two may overlap: what a body writes must not
// depend on what it wrote before.
template <typename Body>
void for_each_vector(std::int64_t channels, Body&& body) {
    std::int64_t c = 0;
    for (; c + kLane <= channels; c += kLane) {
        body(c, kLane);
    }
    if (c < channels) {
        channels >= kLane ? body(channels - kLane, kLane) : body(c, channels - c);
    }
}

Lane read(const float* from, std::int64_t count) {
    return count == kLane ? load(from) : load_part(from, count, 0.0F);
}

void write(float* to, Lane v, std::int64_t count) {
    count == kLane ? store(to, v) : store_part(to, v, count);
}

Ints read_bytes(const std::uint8_t* from, std::int64_t count) {
    Bytes bytes{};
    if (count == kLane) {
        __builtin_memcpy(&bytes, from, sizeof bytes);
    } else {
        for (std::int64_t i = 0; i < kLane; ++i) {
            bytes[i] = i < count ? from[i] : std::uint8_t{0};
        }
    }
    return __builtin_convertvector(bytes, Ints);
}

void write_bytes(std::uint8_t* to, Ints v, std::int64_t count) {
    const Bytes bytes = __builtin_convertvector(v, Bytes);
    if (count == kLane) {
        __builtin_memcpy(to, &bytes, sizeof bytes);
    } else {
        for (std::int64_t i = 0; i < kLane && i < count; ++i) {
            to[i] = bytes[i];
        }
    }
}

void pool_maximum(const float* x, const std::int64_t* offsets, const std::int32_t* numbers, std::int64_t count,
                  std::int64_t channels, float* y, std::uint8_t* chosen) {
    for_each_vector(channels, [&](std::int64_t c, std::int64_t part) {
        Lane best = splat(-std::numeric_limits<float>::infinity());
        Ints where{};
        if (count > 0) {
            best = read(x + offsets[0] + c, part);
            where = splat(numbers[0]);
        }
        for (std::int64_t i = 1; i < count; ++i) {
            const Lane v = read(x + offsets[i] + c, part);
            const Ints better = (v > best) | ((v != v) & (best == best));
            best = better ? v : best;
            where = better ? splat(numbers[i]) : where;
        }
        if (y != nullptr) {
            write(y + c, best, part);
        }
        if (chosen != nullptr) {
            write_bytes(chosen + c, where, part);
        }
    });
}

void gather_chosen(const float* dy, const std::uint8_t* chosen, const PoolSource* sources, std::int64_t count,
                   std::int64_t channels, float* dx) {
    for_each_vector(channels, [&](std::int64_t c, std::int64_t part) {
        Lane total{};
        for (std::int64_t i = 0; i < count; ++i) {
            const Ints tap = read_bytes(chosen + sources[i].offset + c, part);
            const Lane v = read(dy + sources[i].offset + c, part);
            total += tap == splat(sources[i].tap) ? v : Lane{};
        }
        write(dx + c, total, part);
    });
}

void gather_shares(const float* dy, const PoolSource* sources, std::int64_t count, std::int64_t channels, float* dx) {
    for_each_vector(channels, [&](std::int64_t c, std::int64_t part) {
        Lane total{};
        for (std::int64_t i = 0; i < count; ++i) {
            total += read(dy + sources[i].offset + c, part) * sources[i].factor;
        }
        write(dx + c, total, part);
    });
}

}  // namespace

GRAPHKIT_ISA_DEFINE(PoolGradientFunctions, pool_gradient_functions) = {pool_maximum, gather_chosen, gather_shares};

}  // namespace graphkit
