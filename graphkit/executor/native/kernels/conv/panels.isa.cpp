// Products of rows with a constant matrix in panels of 64 columns, in the layout that oneDNN chooses with AVX-512
// (BA16a64b): [panels][depth, padded to a multiple of 16][64]. So one packed form of a matrix serves any number of
// rows.
#include "kernels/conv/pairs.h"

namespace graphkit {
namespace {

#if defined(__AVX512F__)

constexpr std::int64_t kPanel = 64;
constexpr std::int64_t kDepthGrain = 16;
constexpr int kPanelVectors = kPanel / kWide;
constexpr std::int64_t kPanelBlocks = kPanel / kBlock;
// Products in a chain of sums.
constexpr std::int64_t kPanelChain = 128;
// Up to this many rows, the sums of a whole panel stay in registers.
constexpr int kWholeRows = 6;
// Largest size, in bytes, of the rows of a part, and of matrices that stay in the second-level cache.
constexpr std::int64_t kRowBytes = 1 << 18;
constexpr std::int64_t kCachedBytes = 1 << 19;
// Rows whose distance is a multiple of this many elements share few sets of the cache: they are copied if many columns
// are multiplied.
constexpr std::int64_t kApart = 512;
constexpr std::int64_t kManyColumns = 256;

// How many elements ahead a panel is prefetched. Up to kFewRows rows only wait for memory, and more rows up to
// kWholeRows partly. With still more rows, parts of a panel are multiplied one after the other: each prefetches its
// part of the next chain, so that memory is read during all of them.
constexpr int kFewRows = 4;
constexpr int kSomeAhead = 48;
constexpr int kChainAhead = static_cast<int>(kPanelChain);

constexpr std::int64_t stored_depth(std::int64_t depth) {
    return (depth + kDepthGrain - 1) / kDepthGrain * kDepthGrain;
}

std::int64_t panel_floats(const TiledShape& s) {
    return stored_depth(s.channels) * kPanel;
}

bool copies_rows(const TiledShape& s, std::int64_t rows) {
    return rows > 1 && s.channels % kApart == 0 && s.filters >= kManyColumns;
}

// Floats for copies of the rows, and for their products with a panel.
std::int64_t panel_scratch_floats(const TiledShape& s, std::int64_t rows) {
    return rows * ((copies_rows(s, rows) ? row_floats(s.channels) : 0) + kPanel);
}

std::int64_t panel_rows(const TiledShape& s) {
    const std::int64_t bytes = s.channels * static_cast<std::int64_t>(sizeof(float));
    if (bytes * s.filters <= kCachedBytes) {
        return kPartTiles;
    }
    return std::clamp(kRowBytes / bytes / kRegisterRows * kRegisterRows, kPartTiles, 4 * kPartTiles);
}

std::int64_t rows_of(const TiledShape& s) {
    return s.out_height * s.out_width;
}

// Transposes 16 rows of 16 elements, `step` elements apart, into rows that are kPanel elements apart.
inline void transpose(const float* from, std::int64_t step, float* to) {
    Lanes rows[kWide];
    for (int r = 0; r < kWide; ++r) {
        rows[r] = load<float>(from + r * step);
    }
    // In each pass, rows that are `apart` rows apart exchange the elements whose number has this bit.
    const auto exchange = [&]<int Apart>(std::integral_constant<int, Apart>) {
        using Order = std::int32_t __attribute__((vector_size(sizeof(Lanes))));
        Order low{};
        Order high{};
        for (int i = 0; i < kWide; ++i) {
            low[i] = (i & Apart) == 0 ? i : static_cast<int>(kWide) + i - Apart;
            high[i] = (i & Apart) == 0 ? i + Apart : static_cast<int>(kWide) + i;
        }
#pragma GCC unroll 16
        for (int r = 0; r < kWide; ++r) {
            if ((r & Apart) == 0) {
                const Lanes first = rows[r];
                const Lanes second = rows[r + Apart];
                rows[r] = __builtin_shuffle(first, second, low);
                rows[r + Apart] = __builtin_shuffle(first, second, high);
            }
        }
    };
    exchange(std::integral_constant<int, 1>());
    exchange(std::integral_constant<int, 2>());
    exchange(std::integral_constant<int, 4>());
    exchange(std::integral_constant<int, 8>());
    for (int r = 0; r < kWide; ++r) {
        store(to + r * kPanel, rows[r]);
    }
}

// Copies some rows of the matrix into a panel. Missing columns and the rows after the last one become zero.
bool order_columns(const TiledShape& s, const TiledFilters& f) {
    float* const to = f.to + f.first_channel * kPanel;
    const bool is_last = f.first_channel + f.channels == s.channels;
    const std::int64_t end = is_last ? stored_depth(s.channels) - f.first_channel : f.channels;
    std::fill(to + f.channels * kPanel, to + end * kPanel, 0.0F);
    std::int64_t column = 0;
    if (f.filter_step == 1) {
        for (std::int64_t c = 0; c < f.channels; ++c) {
            const float* from = f.w + c * f.channel_step;
            for (std::int64_t m = 0; m < kPanel; m += kWide) {
                const std::int64_t count = std::clamp<std::int64_t>(f.filters - m, 0, kWide);
                store(to + c * kPanel + m, count == kWide
                                               ? load<float>(from + m)
                                               : (count == 0 ? Lanes{} : load_part<float>(from + m, count, 0)));
            }
        }
        return true;
    }
    if (f.channel_step == 1) {
        for (; column + kWide <= f.filters; column += kWide) {
            const float* from = f.w + column * f.filter_step;
            std::int64_t c = 0;
            for (; c + kWide <= f.channels; c += kWide) {
                transpose(from + c, f.filter_step, to + c * kPanel + column);
            }
            for (; c < f.channels; ++c) {
                for (std::int64_t m = 0; m < kWide; ++m) {
                    to[c * kPanel + column + m] = from[m * f.filter_step + c];
                }
            }
        }
    }
    for (std::int64_t c = 0; c < f.channels; ++c) {
        for (std::int64_t m = column; m < kPanel; ++m) {
            to[c * kPanel + m] = given_filter(f, m, c, 0);
        }
    }
    return true;
}

// Rows of a part, `step` floats apart, and the memory for their products with a panel.
struct Rows {
    const float* first;
    std::int64_t step, count, position;
    float* products;
};

// Multiplies `Count` rows by the last chain of a panel, from one of its blocks on, and finishes the results.
template <int Count, int Vectors, int Ahead>
__attribute__((noinline)) void finish_rows(const float* rows, std::int64_t step, const float* columns,
                                           std::int64_t elements, const float* partial, const Finish* finishes,
                                           std::int64_t position) {
    constexpr int kEach = std::min(Vectors, kVectors);
    Lanes sums[Count][Vectors] = {};
    add_products<kPanelVectors, Ahead>(rows, step, columns, elements, sums);
    if (partial != nullptr) {
#pragma GCC unroll 16
        for (int r = 0; r < Count; ++r) {
            for (int v = 0; v < Vectors; ++v) {
                sums[r][v] += load<float>(partial + r * kPanel + v * kWide);
            }
        }
    }
#pragma GCC unroll 2
    for (int b = 0; b < Vectors / kEach; ++b) {
        Lanes block[Count][kEach];
#pragma GCC unroll 16
        for (int r = 0; r < Count; ++r) {
            for (int v = 0; v < kEach; ++v) {
                block[r][v] = sums[r][b * kEach + v];
            }
        }
        finishes[b].store_rows(block, position);
    }
}

using FinishRows = void (*)(const float*, std::int64_t, const float*, std::int64_t, const float*, const Finish*,
                            std::int64_t);

template <int Vectors, int Ahead, int... Less>
constexpr FinishRows finish_some(std::int64_t rows, std::integer_sequence<int, Less...>) {
    constexpr FinishRows all[] = {finish_rows<Less + 1, Vectors, Ahead>...};
    return all[rows - 1];
}

// Multiplies all rows by the elements from `first` on of some columns of a panel, at most `Most` rows at a time.
// `products`: the sums over earlier elements.
template <int Vectors, int Most, int Ahead>
void multiply_chain(const TiledPart& p, const Rows& rows, const float* columns, std::int64_t first, float* products,
                    const Finish* finishes) {
    constexpr auto kCounts = std::make_integer_sequence<int, Most>();
    const std::int64_t elements = std::min(kPanelChain, p.shape.channels - first);
    const bool is_last = first + elements == p.shape.channels;
    const std::int64_t parts = (rows.count + Most - 1) / Most;
    std::int64_t begin = 0;
    for (std::int64_t part = 0; part < parts; ++part) {
        const std::int64_t some = (rows.count - begin + parts - part - 1) / (parts - part);
        const float* from = rows.first + begin * rows.step + first;
        float* const to = products + begin * kPanel;
        if (is_last) {
            finish_some<Vectors, Ahead>(some, kCounts)(from, rows.step, columns, elements, first == 0 ? nullptr : to,
                                                       finishes, rows.position + begin);
        } else {
            multiply_some<Vectors, kPanelVectors, Ahead>(some, kCounts)(from, rows.step, columns, elements, to, kPanel,
                                                                        first > 0);
        }
        begin += some;
    }
}

void multiply_panel(const TiledPart& p, const Rows& rows, std::int64_t panel) {
    const float* const from = p.filters + panel * panel_floats(p.shape);
    const std::int64_t columns = std::min(kPanel, p.shape.filters - panel * kPanel);
    const bool is_whole = columns > kPanel - kWide;
    const bool at_once = rows.count <= kWholeRows && is_whole;
    const Finish finishes[kPanelBlocks] = {{p, panel * kPanelBlocks}, {p, panel * kPanelBlocks + 1}};
    for (std::int64_t first = 0; first < p.shape.channels; first += kPanelChain) {
        const float* const chain = from + first * kPanel;
        if (at_once) {
            const auto multiply = rows.count <= kFewRows ? multiply_chain<kPanelVectors, kFewRows, kAhead>
                                                         : multiply_chain<kPanelVectors, kWholeRows, kSomeAhead>;
            multiply(p, rows, chain, first, rows.products, finishes);
            continue;
        }
        if (is_whole) {
            const std::int64_t elements = std::min(kPanelChain, p.shape.channels - first);
            const bool is_last = first + elements == p.shape.channels;
            const Windows windows{rows.first + first, rows.step, 1, elements, 0};
            const PairChain pairs{
                windows, chain, kBlock, nullptr, rows.products, first > 0, is_last ? finishes : nullptr, rows.position};
            multiply_pairs<kPanel>(pairs, rows.count,
                                   is_last ? from + panel_floats(p.shape) : chain + elements * kPanel);
            continue;
        }
        for (std::int64_t column = 0; column < columns; column += kBlock) {
            const auto multiply = columns - column > kWide ? multiply_chain<kVectors, kRegisterRows, kChainAhead>
                                                           : multiply_chain<1, kRegisterRows, kChainAhead>;
            multiply(p, rows, chain + column, first, rows.products + column, finishes + column / kBlock);
        }
    }
}

// Multiplies a few rows by the first `Vectors` vectors of `Panels` panels at once: one panel has too few sums to hide
// the latency of a multiplication. The matrix is not prefetched: each element is read once, in order, and the processor
// does this better.
template <int Count, int Panels, int Vectors>
void multiply_few(const TiledPart& p, const Rows& rows, std::int64_t panel) {
    const std::int64_t depth = p.shape.channels;
    const std::int64_t apart = panel_floats(p.shape);
    const float* const panels = p.filters + panel * apart;
    Lanes totals[Count][Panels][Vectors];
    for (std::int64_t first = 0; first < depth; first += kPanelChain) {
        const std::int64_t end = std::min(first + kPanelChain, depth);
        Lanes sums[Count][Panels][Vectors] = {};
        for (std::int64_t e = first; e < end; ++e) {
            Lanes elements[Count];
            for (int r = 0; r < Count; ++r) {
                elements[r] = splat(rows.first[r * rows.step + e]);
            }
            for (int b = 0; b < Panels; ++b) {
                for (int v = 0; v < Vectors; ++v) {
                    Lanes factors = load<float>(panels + b * apart + e * kPanel + v * kWide);
                    if constexpr (Count > 1) {
                        factors = in_register(factors);
                    }
                    for (int r = 0; r < Count; ++r) {
                        sums[r][b][v] += elements[r] * factors;
                    }
                }
            }
        }
        for (int r = 0; r < Count; ++r) {
            for (int b = 0; b < Panels; ++b) {
                for (int v = 0; v < Vectors; ++v) {
                    totals[r][b][v] = first == 0 ? sums[r][b][v] : sums[r][b][v] + totals[r][b][v];
                }
            }
        }
    }
    for (int b = 0; b < Panels; ++b) {
        for (int block = 0; block * kVectors < Vectors; ++block) {
            const Finish finish(p, (panel + b) * kPanelBlocks + block);
            for (int r = 0; r < Count; ++r) {
                Lanes results[kVectors] = {};
                for (int v = 0; v < kVectors && block * kVectors + v < Vectors; ++v) {
                    results[v] = totals[r][b][block * kVectors + v];
                }
                finish(results, rows.position + r);
            }
        }
    }
}

// Multiplies a few rows by all panels of the part. The last panel may have few columns.
template <int Count>
void multiply_few_rows(const TiledPart& p, const Rows& rows) {
    constexpr int kTogether = Count < kFewRows ? 2 : 1;
    std::int64_t panel = p.first_block;
    const auto columns = [&] { return p.shape.filters - panel * kPanel; };
    for (; panel + kTogether <= p.end_block && columns() > kTogether * kPanel - kBlock; panel += kTogether) {
        multiply_few<Count, kTogether, kPanelVectors>(p, rows, panel);
    }
    for (; panel < p.end_block; ++panel) {
        columns() > kBlock ? multiply_few<Count, 1, kPanelVectors>(p, rows, panel)
                           : multiply_few<Count, 1, kVectors>(p, rows, panel);
    }
}

void run_panels(const TiledPart& p) {
    const TiledShape& s = p.shape;
    Rows rows{p.x + p.first_tile * s.channels, s.channels, p.tiles, p.first_tile, p.scratch};
    switch (p.tiles) {
        case 1:
            return multiply_few_rows<1>(p, rows);
        case 2:
            return multiply_few_rows<2>(p, rows);
        case 3:
            return multiply_few_rows<3>(p, rows);
        case 4:
            return multiply_few_rows<4>(p, rows);
        default:
            break;
    }
    if (copies_rows(s, p.tiles)) {
        const std::int64_t step = row_floats(s.channels);
        for (std::int64_t r = 0; r < p.tiles; ++r) {
            std::copy_n(rows.first + r * rows.step, s.channels, p.scratch + r * step);
        }
        rows.first = p.scratch;
        rows.step = step;
        rows.products = p.scratch + p.tiles * step;
    }
    for (std::int64_t panel = p.first_block; panel < p.end_block; ++panel) {
        multiply_panel(p, rows, panel);
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(TiledTable, panels_table) = {kPanel,        panel_rows, rows_of, panel_floats, panel_scratch_floats,
                                                 order_columns, run_panels};

#else

}  // namespace

// Other instruction sets: not compiled, because oneDNN chooses other layouts there.
GRAPHKIT_ISA_DEFINE(TiledTable, panels_table) = {};

#endif

}  // namespace graphkit
