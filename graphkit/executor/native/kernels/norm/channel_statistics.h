// Sums over all images and positions of channels.
#pragma once

#include <cmath>

#include "kernels/norm/norm.h"
#include "primitives/float_type.h"
#include "primitives/reduction_table.h"
#include "runtime/threads.h"

namespace graphkit {

// Number of channels that a thread processes together if each channel has one element in each image.
constexpr std::int64_t kChannelTile = 128;

// Calls body(first channel, number of channels) for groups of channels, shared among threads.
template <typename Body>
void for_each_channel_group(const ChannelGeometry& g, int threads, double element_nanoseconds, Body&& body) {
    const std::int64_t step = g.inner == 1 ? kChannelTile : 1;
    const std::int64_t groups = (g.channels + step - 1) / step;
    const double cost = 20 + element_nanoseconds * static_cast<double>(g.count() * step);
    parallel_for(threads, groups, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t group = begin; group < end; ++group) {
            body(group * step, std::min(step, g.channels - group * step));
        }
    });
}

// out[i] = the reduction of x over channel first + i, for a group of channels.
template <typename T>
void reduce_channels(const ChannelGeometry& g, Reduction reduction, const T* x, std::int64_t first, std::int64_t count,
                     const Wide<T>* shift, Wide<T>* out) {
    const ReductionFunctions<T>& functions = reduction_table().reduction<T>(reduction);
    if (g.inner == 1 && g.images > 0) {
        functions.columns(x + first, g.images, g.channels, count, shift, out);
        return;
    }
    for (std::int64_t i = 0; i < count; ++i) {
        double total = 0;
        for (std::int64_t image = 0; image < g.images; ++image) {
            Wide<T> part;
            functions.rows(x + g.offset(image, first + i), 1, 0, g.inner, shift == nullptr ? nullptr : shift + i,
                           &part);
            total += static_cast<double>(part);
        }
        out[i] = static_cast<Wide<T>>(total);
    }
}

// Computes the mean and 1 / sqrt(var + epsilon) of a group of channels; `var` may be null.
template <typename T>
void channel_statistics(const ChannelGeometry& g, const T* x, std::int64_t first, std::int64_t count, double epsilon,
                        Wide<T>* mean, Wide<T>* inverse, Wide<T>* var) {
    using W = Wide<T>;
    const auto elements = static_cast<W>(g.count());
    reduce_channels(g, Reduction::sum, x, first, count, nullptr, mean);
    for (std::int64_t i = 0; i < count; ++i) {
        mean[i] /= elements;
    }
    reduce_channels(g, Reduction::sum_squares_about, x, first, count, mean, inverse);
    for (std::int64_t i = 0; i < count; ++i) {
        const W spread = inverse[i] / elements;
        inverse[i] = W{1} / std::sqrt(spread + static_cast<W>(epsilon));
        if (var != nullptr) {
            var[i] = spread;
        }
    }
}

}  // namespace graphkit
