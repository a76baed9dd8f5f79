// Direct convolution: the windows of some results are copied from the image into rows, and multiplied by the filters.
#include "kernels/conv/pairs.h"

namespace graphkit {
namespace {

constexpr std::int64_t kDirectChain = 128;
// Windows with fewer elements are summed in one chain if they are read where they are in the image.
constexpr std::int64_t kLineChain = 512;
constexpr std::int64_t kMaxPartTiles = 4 * kPartTiles;
// Windows of at least kManyElements that are copied together: with fewer, a multiplication waits for the one before.
constexpr std::int64_t kCopiedTogether = 4;
constexpr std::int64_t kManyElements = 96;
// Floats between the windows of an image with three channels, for a stride of 2.
constexpr std::int64_t kColourStep = 6;
// Largest size, in bytes, of the windows of a part, and of filters that stay in the second-level cache.
constexpr std::int64_t kPartBytes = 1 << 18;
constexpr std::int64_t kCachedFilterBytes = 1 << 19;

std::int64_t direct_filter_floats(const TiledShape& s) {
    return s.taps() * s.channels * kBlock;
}

// Whether windows are single elements that are contiguous in x. Exception: if the rows of a part would share few sets
// of the cache, and many blocks read them, copying is faster.
bool reads_in_place(const TiledShape& s) {
    constexpr std::int64_t kApart = 512;
    constexpr std::int64_t kManyFilters = 8 * kBlock;
    const bool single =
        s.taps() == 1 && s.strides[0] == 1 && s.strides[1] == 1 && s.out_height == s.height && s.out_width == s.width;
    return single && (s.channels % kApart != 0 || s.filters < kManyFilters);
}

// Floats for the windows, and for their products with the blocks that are multiplied together.
std::int64_t direct_scratch_floats(const TiledShape& s, std::int64_t tiles) {
    return tiles * ((reads_in_place(s) ? 0 : row_floats(s.taps() * s.channels)) + kPair * kBlock);
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

// The image of a result's window, and the window's first element, which may be in the padding.
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

// Calls body(tap, channels at the tap); null in the padding.
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

// Copies a window into a row of elements, with zeros for padding. Adjacent taps of a line are copied at once.
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

// Computes one result for filters that are not all finite: padding must not be multiplied by infinity.
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

// Computes `Rows` results from `position` on. `partial`: sums over earlier elements, a block for each window; null if
// there are none.
// `Step`: the windows' step; 0 if it is not known here.
template <int Rows, int Vectors, std::int64_t Step>
__attribute__((noinline)) void finish_rows(const Windows& windows, const float* filters, const float* partial,
                                           const Finish& finish, std::int64_t position) {
    Lanes sums[Rows][Vectors] = {};
    for (std::int64_t i = 0; i < windows.lines; ++i) {
        add_products<kVectors>(windows.first + i * windows.line_step, Step == 0 ? windows.step : Step,
                               filters + i * windows.elements * kBlock, windows.elements, sums);
    }
    if (partial != nullptr) {
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
            for (int v = 0; v < Vectors; ++v) {
                sums[r][v] += load<float>(partial + r * kBlock + v * kWide);
            }
        }
    }
    finish.store_rows(sums, position);
}

using FinishRows = void (*)(const Windows&, const float*, const float*, const Finish&, std::int64_t);

template <int Vectors, std::int64_t Step, int... Less>
constexpr FinishRows finish_some(std::int64_t rows, std::integer_sequence<int, Less...>) {
    constexpr FinishRows all[] = {finish_rows<Less + 1, Vectors, Step>...};
    return all[rows - 1];
}

template <int Vectors, std::int64_t Step = 0>
void finish_windows(std::int64_t count, const Windows& given, const float* filters, const float* partial,
                    const Finish& finish, std::int64_t position) {
    Windows windows{given.first, given.step, given.lines, given.elements, given.line_step};
    const std::int64_t parts = (count + kRegisterRows - 1) / kRegisterRows;
    for (std::int64_t part = 0; part < parts; ++part) {
        const std::int64_t some = (count + parts - part - 1) / (parts - part);
        const FinishRows run = finish_some<Vectors, Step>(some, std::make_integer_sequence<int, kRegisterRows>());
        run(windows, filters, partial, finish, position);
        windows.first += some * windows.step;
        partial = partial == nullptr ? nullptr : partial + some * kBlock;
        position += some;
        count -= some;
    }
}

// `count` results from position `first` on, whose windows are at equal distances.
struct Run {
    std::int64_t first, count;
    Windows windows;
    std::int64_t tap;  // tap of the first element of each window
};

// Whether windows inside the columns of the image are read there, line by line, without copies. Each sum is one chain,
// so the bits equal those of a copied window.
bool reads_lines(const TiledShape& s) {
    return !reads_in_place(s) && s.dilations[1] == 1 && s.taps() * s.channels < kLineChain &&
           s.out_width >= kRegisterRows;
}

// Computes one block of the results of a run. `products` has a block of floats for each result.
void multiply_block(const TiledPart& p, const Run& run, std::int64_t block, float* products) {
    const Finish last(p, block);
    const std::int64_t elements = p.shape.taps() * p.shape.channels;
    const float* filters = p.filters + (block * elements + run.tap * p.shape.channels) * kBlock;
    const bool whole = p.shape.filters - block * kBlock > kWide;
    Windows windows = run.windows;
    const float* partial = nullptr;
    if (windows.elements > kDirectChain && !reads_lines(p.shape)) {
        const std::int64_t head = (windows.elements - 1) / kDirectChain * kDirectChain;
        if (whole) {
            multiply(run.count, windows.first, windows.step, filters, head, kDirectChain, products);
        } else {
            multiply<1, kVectors>(run.count, windows.first, windows.step, filters, head, kDirectChain, products, false,
                                  kBlock);
        }
        partial = products;
        windows.first += head;
        windows.elements -= head;
        filters += head * kBlock;
    }
    const auto finish = !whole                        ? finish_windows<1>
                        : windows.step == kColourStep ? finish_windows<kVectors, kColourStep>
                                                      : finish_windows<kVectors>;
    finish(run.count, windows, filters, partial, last, run.first);
}

// Computes two whole blocks of the results of a run, in the same order of sums as multiply_block.
void multiply_pair(const TiledPart& p, const Run& run, std::int64_t block, float* products) {
    const Finish finishes[kPair] = {{p, block}, {p, block + 1}};
    const std::int64_t apart = p.shape.taps() * p.shape.channels * kBlock;
    const std::int64_t elements = run.windows.elements;
    const std::int64_t most = reads_lines(p.shape) ? elements : kDirectChain;
    const float* const filters = p.filters + block * apart + run.tap * p.shape.channels * kBlock;
    for (std::int64_t first = 0; first < elements; first += most) {
        const std::int64_t end = std::min(first + most, elements);
        PairChain chain{run.windows,
                        filters + first * kBlock,
                        apart,
                        nullptr,
                        products,
                        first > 0,
                        end < elements ? nullptr : finishes,
                        run.first};
        chain.windows.first += first;
        chain.windows.elements = end - first;
        // The next chain of the first block, or, after the last chain, the next blocks.
        const float* const next = filters + end * kBlock + (end < elements ? 0 : apart);
        multiply_pairs(chain, run.count, next);
    }
}

// The runs of a part. Windows that extend beyond the sides of the image are copied.
class Runs {
  public:
    Runs(const TiledPart& p, float* copied)
        : p_(p), copied_(copied), row_(row_floats(p.shape.taps() * p.shape.channels)) {
        const TiledShape& s = p.shape;
        if (reads_in_place(s)) {
            const std::int64_t elements = s.channels;
            runs_[count_++] = {p.first_tile, p.tiles, {p.x + p.first_tile * elements, elements, 1, elements, 0}, 0};
            return;
        }
        // The windows of columns [inner, outer) are inside the columns of the image.
        std::int64_t inner = s.out_width;
        std::int64_t outer = s.out_width;
        if (reads_lines(s)) {
            inner = std::clamp<std::int64_t>((s.pad_left + s.strides[1] - 1) / s.strides[1], 0, s.out_width);
            const std::int64_t room = s.width + s.pad_left - s.kernel[1];
            outer = std::clamp<std::int64_t>(room < 0 ? 0 : room / s.strides[1] + 1, inner, s.out_width);
            const std::int64_t together = s.taps() * s.channels < kManyElements ? 1 : kCopiedTogether;
            if (inner > 0) {
                inner = std::min(std::max(inner, together), s.out_width);
            }
            if (outer < s.out_width) {
                outer = std::min(outer, s.out_width - together);
            }
            outer = std::max(outer, inner);
        }
        for (std::int64_t first = p.first_tile; first < p.first_tile + p.tiles;) {
            const std::int64_t line = first / s.out_width * s.out_width;
            const std::int64_t end = std::min(line + s.out_width, p.first_tile + p.tiles);
            first = add_copies(first, std::min(line + inner, end));
            if (first < std::min(line + outer, end)) {
                first = add_lines(first, std::min(line + outer, end));
            }
            first = add_copies(first, end);
        }
    }

    const Run* begin() const { return runs_; }
    const Run* end() const { return runs_ + count_; }

  private:
    // Copies the windows of the results from `first` to `end`, and returns the end.
    std::int64_t add_copies(std::int64_t first, std::int64_t end) {
        if (first >= end) {
            return first;
        }
        float* to = copied_ + (first - p_.first_tile) * row_;
        WindowPlace window = window_of(p_, first);
        for (std::int64_t r = first; r < end; ++r, window.left += p_.shape.strides[1]) {
            copy_window(p_.shape, window, to + (r - first) * row_);
        }
        if (count_ > 0 && !reads_image_) {
            runs_[count_ - 1].count += end - first;
        } else {
            runs_[count_++] = {first, end - first, {to, row_, 1, p_.shape.taps() * p_.shape.channels, 0}, 0};
        }
        reads_image_ = false;
        return end;
    }

    // Adds results whose windows are inside the columns of the image. Lines above and below the image are skipped.
    std::int64_t add_lines(std::int64_t first, std::int64_t end) {
        const TiledShape& s = p_.shape;
        const WindowPlace window = window_of(p_, first);
        const std::int64_t step = s.dilations[0];
        const std::int64_t from = window.top >= 0 ? 0 : std::min((step - 1 - window.top) / step, s.kernel[0]);
        const std::int64_t to = std::clamp<std::int64_t>((s.height - window.top + step - 1) / step, from, s.kernel[0]);
        const float* line = window.image + ((window.top + from * step) * s.width + window.left) * s.channels;
        runs_[count_++] = {
            first,
            end - first,
            {line, s.strides[1] * s.channels, to - from, s.kernel[1] * s.channels, step * s.width * s.channels},
            from * s.kernel[1]};
        reads_image_ = true;
        return end;
    }

    const TiledPart& p_;
    float* copied_;
    std::int64_t row_;
    Run runs_[kMaxPartTiles];
    int count_ = 0;
    bool reads_image_ = false;  // whether the last run reads the image
};

// Blocks of filters that one row is multiplied by together. One block has too few sums to hide the latency of a
// multiplication. Filters are not prefetched: each is read once, in order, and the processor does this better.
constexpr int kRowBlocks = 4;

// Multiplies one window by kRowBlocks blocks, in the same order of sums as multiply_block.
void multiply_row(const TiledPart& p, const float* window, std::int64_t elements, std::int64_t block,
                  std::int64_t position) {
    const float* filters = p.filters + block * elements * kBlock;
    Lanes totals[kRowBlocks][1][kVectors];
    for (std::int64_t first = 0; first < elements; first += kDirectChain) {
        const std::int64_t end = std::min(first + kDirectChain, elements);
        Lanes sums[kRowBlocks][kVectors] = {};
        for (std::int64_t e = first; e < end; ++e) {
            const Lanes element = splat(window[e]);
            for (int b = 0; b < kRowBlocks; ++b) {
                const float* filter = filters + (b * elements + e) * kBlock;
                for (int v = 0; v < kVectors; ++v) {
                    sums[b][v] += element * load<float>(filter + v * kWide);
                }
            }
        }
        for (int b = 0; b < kRowBlocks; ++b) {
            for (int v = 0; v < kVectors; ++v) {
                totals[b][0][v] = first == 0 ? sums[b][v] : sums[b][v] + totals[b][0][v];
            }
        }
    }
    for (int b = 0; b < kRowBlocks; ++b) {
        Finish(p, block + b).store_rows(totals[b], position);
    }
}

// Whether `count` blocks from this one on are full, and their filters sound.
bool blocks_are_whole(const TiledPart& p, std::int64_t block, int count) {
    if (block + count > p.end_block || (block + count) * kBlock > p.shape.filters) {
        return false;
    }
    for (int b = 0; b < count; ++b) {
        if (any_unsound(p, block + b)) {
            return false;
        }
    }
    return true;
}

void run_direct(const TiledPart& p) {
    const TiledShape& s = p.shape;
    const std::int64_t elements = s.taps() * s.channels;
    float* copied = p.scratch;
    float* products = reads_in_place(s) ? copied : copied + p.tiles * row_floats(elements);
    const Runs runs(p, copied);
    const bool is_row = p.tiles == 1 && reads_in_place(s);
    for (std::int64_t block = p.first_block; block < p.end_block; ++block) {
        if (is_row && blocks_are_whole(p, block, kRowBlocks)) {
            multiply_row(p, p.x + p.first_tile * elements, elements, block, p.first_tile);
            block += kRowBlocks - 1;
            continue;
        }
        if (kHasPairs && blocks_are_whole(p, block, kPair)) {
            for (const Run& run : runs) {
                multiply_pair(p, run, block, products);
            }
            block += kPair - 1;
            continue;
        }
        if (!any_unsound(p, block)) {
            for (const Run& run : runs) {
                multiply_block(p, run, block, products);
            }
            continue;
        }
        const Finish finish(p, block);
        for (std::int64_t r = 0; r < p.tiles; ++r) {
            add_inside(p, p.first_tile + r, p.filters + block * elements * kBlock, products);
            Lanes y[kVectors];
            for (int v = 0; v < kVectors; ++v) {
                y[v] = load<float>(products + v * kWide);
            }
            finish(y, p.first_tile + r);
        }
    }
}

// A part reads all filters once. If they do not fit into the second-level cache, parts are as large as their windows
// allow.
std::int64_t direct_part_tiles(const TiledShape& s) {
    if (reads_lines(s)) {
        // Whole lines, or equal parts of a long one.
        const std::int64_t parts = (s.out_width + kMaxPartTiles - 1) / kMaxPartTiles;
        return parts > 1 ? (s.out_width + parts - 1) / parts
                         : std::max<std::int64_t>(kPartTiles / s.out_width, 1) * s.out_width;
    }
    const std::int64_t window_bytes = s.taps() * s.channels * static_cast<std::int64_t>(sizeof(float));
    if (window_bytes * s.filters <= kCachedFilterBytes) {
        return kHasPairs && s.filters >= kPair * kBlock ? kPairTiles : kPartTiles;
    }
    return std::clamp(kPartBytes / window_bytes / kRegisterRows * kRegisterRows, kPartTiles, kMaxPartTiles);
}

std::int64_t results_of(const TiledShape& s) {
    return s.out_height * s.out_width;
}

}  // namespace

GRAPHKIT_ISA_DEFINE(TiledTable, direct_table) = {
    kBlock, direct_part_tiles, results_of, direct_filter_floats, direct_scratch_floats, order_filters, run_direct};

}  // namespace graphkit
