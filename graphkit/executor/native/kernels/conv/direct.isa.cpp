// Convolution by the definition: the windows of some results are copied out of the image as rows, and multiplied.
#include "kernels/conv/tiles.h"

namespace graphkit {
namespace {

constexpr std::int64_t kDirectChain = 128;

std::int64_t direct_filter_floats(const TiledShape& s) {
    return s.taps() * s.channels * kBlock;
}

// Whether windows are single elements, one after the other as they lie in x. Where all rows of a part would meet in few
// places of the cache, copies of them pay, if many blocks read them.
bool reads_in_place(const TiledShape& s) {
    constexpr std::int64_t kApart = 512;
    constexpr std::int64_t kManyFilters = 8 * kBlock;
    const bool single =
        s.taps() == 1 && s.strides[0] == 1 && s.strides[1] == 1 && s.out_height == s.height && s.out_width == s.width;
    return single && (s.channels % kApart != 0 || s.filters < kManyFilters);
}

// The windows, and their products with a block.
std::int64_t direct_scratch_floats(const TiledShape& s, std::int64_t tiles) {
    return tiles * ((reads_in_place(s) ? 0 : row_floats(s.taps() * s.channels)) + kBlock);
}

bool order_filters(const TiledShape& s, const TiledFilters& f) {
    Lanes watch{};
    for (std::int64_t c = 0; c < f.channels; ++c) {
        for (std::int64_t t = 0; t < s.taps(); ++t) {
            float* to = f.to + (t * s.channels + f.first_channel + c) * kBlock;
            for (std::int64_t m = 0; m < kBlock; ++m) {
                to[m] = given_filter(f, m, c, t);
            }
            for (int v = 0; v < kVectors; ++v) {
                watch += not_finite(load<float>(to + v * kWide));
            }
        }
    }
    return is_sound(watch);
}

// The window of a result: its first element, which may lie in the padding, in the image `x`.
struct WindowPlace {
    const float* image;
    std::int64_t top, left;
};

inline WindowPlace window_of(const TiledPart& p, std::int64_t result) {
    const TiledShape& s = p.shape;
    const std::int64_t line = result / s.out_width;
    return {p.x + line / s.out_height * s.height * s.width * s.channels, line % s.out_height * s.strides[0] - s.pad_top,
            result % s.out_width * s.strides[1] - s.pad_left};
}

// Calls body(tap, its channels), which are null in the padding.
template <typename Body>
inline void for_each_tap(const TiledShape& s, const WindowPlace& window, Body&& body) {
    std::int64_t tap = 0;
    for (std::int64_t i = 0; i < s.kernel[0]; ++i) {
        const std::int64_t h = window.top + i * s.dilations[0];
        for (std::int64_t j = 0; j < s.kernel[1]; ++j) {
            const std::int64_t w = window.left + j * s.dilations[1];
            const bool inside = h >= 0 && h < s.height && w >= 0 && w < s.width;
            body(tap++, inside ? window.image + (h * s.width + w) * s.channels : nullptr);
        }
    }
}

inline void copy(const float* from, std::int64_t floats, float* to) {
    std::int64_t i = 0;
    for (; i + kWide <= floats; i += kWide) {
        store(to + i, load<float>(from + i));
    }
    if (i < floats) {
        store_part<float>(to + i, load_part<float>(from + i, floats - i, 0), floats - i);
    }
}

inline void clear(std::int64_t floats, float* to) {
    std::int64_t i = 0;
    for (; i + kWide <= floats; i += kWide) {
        store(to + i, Lanes{});
    }
    if (i < floats) {
        store_part<float>(to + i, Lanes{}, floats - i);
    }
}

// A window as a row of elements, zero in the padding. The taps of a line that are neighbours are copied at once.
inline void copy_window(const TiledShape& s, const WindowPlace& window, float* to) {
    if (s.dilations[1] != 1) {
        for_each_tap(s, window, [&](std::int64_t tap, const float* from) {
            float* place = to + tap * s.channels;
            from == nullptr ? clear(s.channels, place) : copy(from, s.channels, place);
        });
        return;
    }
    const std::int64_t line = s.kernel[1] * s.channels;
    const std::int64_t before = std::clamp<std::int64_t>(-window.left, 0, s.kernel[1]);
    const std::int64_t end = std::clamp<std::int64_t>(s.width - window.left, before, s.kernel[1]);
    for (std::int64_t i = 0; i < s.kernel[0]; ++i, to += line) {
        const std::int64_t h = window.top + i * s.dilations[0];
        if (h < 0 || h >= s.height || before == end) {
            clear(line, to);
            continue;
        }
        clear(before * s.channels, to);
        copy(window.image + (h * s.width + window.left + before) * s.channels, (end - before) * s.channels,
             to + before * s.channels);
        clear((s.kernel[1] - end) * s.channels, to + end * s.channels);
    }
}

// One result of filters that are not all finite: padding times infinity must not be added.
void add_inside(const TiledPart& p, std::int64_t result, const float* filters, float* to) {
    const std::int64_t channels = p.shape.channels;
    for (int v = 0; v < kVectors; ++v) {
        store(to + v * kWide, Lanes{});
    }
    for_each_tap(p.shape, window_of(p, result), [&](std::int64_t tap, const float* from) {
        if (from != nullptr) {
            multiply(1, from, 0, filters + tap * channels * kBlock, channels, kDirectChain, to, true);
        }
    });
}

void run_direct(const TiledPart& p) {
    const TiledShape& s = p.shape;
    const std::int64_t elements = s.taps() * s.channels;
    const bool in_place = reads_in_place(s);
    const std::int64_t row = in_place ? s.channels : row_floats(elements);
    float* copied = p.scratch;
    float* products = in_place ? copied : copied + p.tiles * row;
    for (std::int64_t r = 0; r < p.tiles && !in_place; ++r) {
        copy_window(s, window_of(p, p.first_tile + r), copied + r * row);
    }
    const float* windows = in_place ? p.x + p.first_tile * row : copied;
    for (std::int64_t block = p.first_block; block < p.end_block; ++block) {
        const float* filters = p.filters + block * elements * kBlock;
        if (any_unsound(p, block)) {
            for (std::int64_t r = 0; r < p.tiles; ++r) {
                add_inside(p, p.first_tile + r, filters, products + r * kBlock);
            }
        } else if (s.filters - block * kBlock > kWide) {
            multiply(p.tiles, windows, row, filters, elements, kDirectChain, products);
        } else {
            multiply<1, kVectors>(p.tiles, windows, row, filters, elements, kDirectChain, products, false, kBlock);
        }
        const Finish finish(p, block);
        for (std::int64_t r = 0; r < p.tiles; ++r) {
            Lanes y[kVectors];
            for (int v = 0; v < kVectors; ++v) {
                y[v] = load<float>(products + r * kBlock + v * kWide);
            }
            finish(y, p.first_tile + r);
        }
    }
}

std::int64_t results_of(const TiledShape& s) {
    return s.out_height * s.out_width;
}

}  // namespace

GRAPHKIT_ISA_DEFINE(TiledTable, direct_table) = {
    kBlock, kPartTiles, results_of, direct_filter_floats, direct_scratch_floats, order_filters, run_direct};

}  // namespace graphkit
