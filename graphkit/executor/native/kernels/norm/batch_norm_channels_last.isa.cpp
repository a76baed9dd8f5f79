// Batch normalisation of rows of channels.
#include "kernels/norm/batch_norm_channels_last.h"
#include "simd/channels.h"

namespace graphkit {
namespace {

// Number of rows that are processed together, so that the data of a channel are loaded once for them.
constexpr std::int64_t kRowsAtOnce = 4;

// Calls body(first channel, number of rows as a constant, first row, access) for all vectors of channels of all rows.
template <typename Body>
void for_each_vector(std::int64_t rows, std::int64_t channels, Body&& body) {
    const auto rows_from = [&](auto together, std::int64_t row) {
        over_channels(channels, [&](std::int64_t c, auto access) { body(c, together, row, access); });
    };
    std::int64_t row = 0;
    for (; row + kRowsAtOnce <= rows; row += kRowsAtOnce) {
        rows_from(std::integral_constant<std::int64_t, kRowsAtOnce>{}, row);
    }
    for (; row < rows; ++row) {
        rows_from(std::integral_constant<std::int64_t, 1>{}, row);
    }
}

void add_moments(const float* x, std::int64_t rows, std::int64_t channels, const float* shift, float* sums,
                 float* squares) {
    for_each_vector(rows, channels, [=](std::int64_t c, auto together, std::int64_t row, auto access) {
        const Lane centre = access.read(shift + c);
        Lane sum = access.read(sums + c);
        Lane square = access.read(squares + c);
        for (std::int64_t i = 0; i < together; ++i) {
            const Lane d = access.read(x + (row + i) * channels + c) - centre;
            sum += d;
            square += d * d;
        }
        access.write(sums + c, sum);
        access.write(squares + c, square);
    });
}

template <bool kResidual>
void normalise_rows(const NormRows& block, const float* residual, float low, float high, float* y) {
    for_each_vector(block.rows, block.channels, [=](std::int64_t c, auto together, std::int64_t row, auto access) {
        const Lane mean = access.read(block.mean + c);
        const Lane factor = access.read(block.factor + c);
        const Lane bias = access.read(block.bias + c);
        for (std::int64_t i = 0; i < together; ++i) {
            const std::int64_t at = (row + i) * block.channels + c;
            Lane v = (access.read(block.x + at) - mean) * factor + bias;
            if constexpr (kResidual) {
                v += access.read(residual + at);
            }
            access.write(y + at, at_most(at_least(v, low), high));
        }
    });
}

void normalise(const NormRows& block, const float* residual, float low, float high, float* y) {
    residual == nullptr ? normalise_rows<false>(block, residual, low, high, y)
                        : normalise_rows<true>(block, residual, low, high, y);
}

// The values that a mask tests: none, the result recomputed from x, or y.
enum class Look { nowhere, at_x, at_y };

// Calls body(kAddend, kLook) as compile-time constants.
template <typename Body>
void with_sources(const float* addend, const float* y, const NormMask& mask, Body&& body) {
    const auto with_look = [&](auto added) {
        if (!mask.used) {
            body(added, std::integral_constant<Look, Look::nowhere>{});
        } else if (y == nullptr) {
            body(added, std::integral_constant<Look, Look::at_x>{});
        } else {
            body(added, std::integral_constant<Look, Look::at_y>{});
        }
    };
    addend == nullptr ? with_look(std::false_type{}) : with_look(std::true_type{});
}

// Returns the gradient that passes the mask for the vector at `at`. `z`: the result of the normalisation, recomputed
// from x.
template <bool kAddend, Look kLook, typename Access>
inline Lane passed(const Access& access, const float* dy, const float* addend, const float* y, std::int64_t at,
                   const NormMask& mask, Lane z) {
    Lane g = access.read(dy + at);
    if constexpr (kAddend) {
        g += access.read(addend + at);
    }
    if constexpr (kLook != Look::nowhere) {
        if constexpr (kLook == Look::at_y) {
            z = access.read(y + at);
        }
        g = (z <= splat(mask.above)) | (z > splat(mask.upto)) ? Lane{} : g;  // g passes where z is NaN
    }
    return g;
}

void add_gradients(const NormRows& block, const float* dy, const float* addend, const float* y, const NormMask& mask,
                   float* g, float* sums, float* dots) {
    with_sources(addend, y, mask, [=](auto added, auto look) {
        for_each_vector(block.rows, block.channels, [=](std::int64_t c, auto together, std::int64_t row, auto access) {
            const Lane mean = access.read(block.mean + c);
            const Lane factor = access.read(block.factor + c);
            const Lane bias = access.read(block.bias + c);
            Lane sum = access.read(sums + c);
            Lane dot = access.read(dots + c);
            for (std::int64_t i = 0; i < together; ++i) {
                const std::int64_t at = (row + i) * block.channels + c;
                const Lane centred = access.read(block.x + at) - mean;
                const Lane v = passed<added, look>(access, dy, addend, y, at, mask, centred * factor + bias);
                sum += v;
                dot += v * centred;
                if (g != nullptr) {
                    access.write(g + at, v);
                }
            }
            access.write(sums + c, sum);
            access.write(dots + c, dot);
        });
    });
}

void gradient(const NormRows& block, const float* dy, const float* addend, const float* y, const NormMask& mask,
              const float* a, const float* b, const float* c0, float* dx) {
    with_sources(addend, y, mask, [=](auto added, auto look) {
        for_each_vector(block.rows, block.channels, [=](std::int64_t c, auto together, std::int64_t row, auto access) {
            const Lane mean = access.read(block.mean + c);
            const Lane factor = access.read(block.factor + c);
            const Lane bias = access.read(block.bias + c);
            const Lane ga = access.read(a + c);
            const Lane xa = access.read(b + c);
            const Lane constant = access.read(c0 + c);
            for (std::int64_t i = 0; i < together; ++i) {
                const std::int64_t at = (row + i) * block.channels + c;
                const Lane centred = access.read(block.x + at) - mean;
                const Lane v = passed<added, look>(access, dy, addend, y, at, mask, centred * factor + bias);
                access.write(dx + at, ga * v + (xa * centred + constant));
            }
        });
    });
}

}  // namespace

GRAPHKIT_ISA_DEFINE(BatchNormFunctions, batch_norm_functions) = {add_moments, normalise, add_gradients, gradient};

}  // namespace graphkit
