// Depthwise convolution with overlapping windows: an element of the input is loaded once for all of them.
#include <utility>

#include "kernels/conv/depthwise_lanes.h"

namespace graphkit {
namespace {

#if defined(__AVX512F__)
constexpr int kSlideWidth = 8;
#else
constexpr int kSlideWidth = 6;
#endif

// Computes `Width` adjacent results, from window `first` on.
template <int Columns, int Width, typename Access>
inline void slide_block(const DepthwiseLine& line, const DepthwiseFinish& finish, std::int64_t first,
                        std::int64_t channel, Access access) {
    Lane sums[Width][1] = {};
    const float* in = line.in + first * line.channels + channel;
    const float* w = line.w + channel;
    for (std::int64_t row = 0; row < line.rows; ++row, in += line.in_row, w += Columns * line.channels) {
        add_line<Columns, 1>(in, w, line.channels, sums, access);
    }
    const Lane bias = finish.bias == nullptr ? Lane{} : access.read(finish.bias + channel);
    float* out = line.out + first * line.out_step + channel;
    const DepthwiseFinish last(finish);  // stored results cannot change it
#pragma GCC unroll 8
    for (int i = 0; i < Width; ++i) {
        access.write(out + i * line.out_step, finished(sums[i][0] + bias, last));
    }
}

template <int Columns, int Width>
void slide_windows(const DepthwiseLine& line, const DepthwiseFinish& finish, std::int64_t first) {
    over_channels(line.channels,
                  [&](std::int64_t c, auto access) { slide_block<Columns, Width>(line, finish, first, c, access); });
}

template <int Columns, int... Less>
inline void slide_columns(const DepthwiseLine& line, const DepthwiseFinish& finish,
                          std::integer_sequence<int, Less...>) {
    using Windows = void (*)(const DepthwiseLine&, const DepthwiseFinish&, std::int64_t);
    constexpr Windows kWindows[] = {slide_windows<Columns, Less + 1>...};
    const std::int64_t blocks = (line.count + kSlideWidth - 1) / kSlideWidth;
    std::int64_t i = 0;
    for (std::int64_t block = 0; block < blocks; ++block) {
        const std::int64_t width = (line.count - i + blocks - block - 1) / (blocks - block);
        kWindows[width - 1](line, finish, i);
        i += width;
    }
}

void slide(const DepthwiseLine& line, const DepthwiseFinish& finish) {
    constexpr auto kWidths = std::make_integer_sequence<int, kSlideWidth>();
    line.columns == 5 ? slide_columns<5>(line, finish, kWidths) : slide_columns<7>(line, finish, kWidths);
}

}  // namespace

GRAPHKIT_ISA_DEFINE(SlideTable, slide_table) = {slide};

}  // namespace graphkit
