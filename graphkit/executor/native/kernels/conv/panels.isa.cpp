// Products of rows with a constant matrix in panels of 64 columns, in the layout that oneDNN chooses with AVX-512
// (BA16a64b): [panels][depth, padded to a multiple of 16][64]. So one packed form of a matrix serves any number of
// rows.
#include "kernels/conv/tiles.h"

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

// At most this many rows only wait for memory.
constexpr int kFewRows = 4;

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

// Some rows, and a chain of elements of some columns of a panel.
struct Chain {
    const float* rows;
    std::int64_t step;
    const float* columns;
    std::int64_t elements;
    const float* next;  // is prefetched
    float* products;
    bool adds;               // to `products`
    const Finish* finishes;  // null if a later chain follows
    std::int64_t position;
};

// Multiplies `Count` rows by a chain, and stores the sums or finishes the results. With each element, `Lines` cache
// lines are prefetched.
template <int Count, int Vectors, int Lines>
__attribute__((noinline)) void multiply_chain(const Chain& chain) {
    constexpr std::int64_t kLine = 64 / sizeof(float);
    const float* const rows = chain.rows;
    const std::int64_t step = chain.step;
    Lanes sums[Count][Vectors] = {};
    for (std::int64_t e = 0; e < chain.elements; ++e) {
        Lanes factors[Vectors];
        for (int v = 0; v < Vectors; ++v) {
            factors[v] = load<float>(chain.columns + e * kPanel + v * kWide);
        }
        for (int line = 0; line < Lines; ++line) {
            // To the second-level cache: the first-level cache has no room for two chains.
            __builtin_prefetch(chain.next + (e * Lines + line) * kLine, 0, 2);
        }
        for (int r = 0; r < Count; ++r) {
            const Lanes element = splat(rows[r * step + e]);
            for (int v = 0; v < Vectors; ++v) {
                sums[r][v] += element * factors[v];
            }
        }
    }
    end_chain<kPanel>(sums, chain.products, chain.adds, chain.finishes, chain.position);
}

template <int Vectors, int Lines, int... Less>
constexpr auto chain_of(std::int64_t rows, std::integer_sequence<int, Less...>) {
    constexpr void (*all[])(const Chain&) = {multiply_chain<Less + 1, Vectors, Lines>...};
    return all[rows - 1];
}

// Multiplies all rows by the elements from `first` on of some columns of a panel, at most `Most` rows and `Vectors`
// vectors at a time. Each group of rows prefetches its part of the next chain, in the order of memory and with equal
// distances in time. Otherwise, prefetches wait for each other, and the processor does not detect the order.
template <int Vectors, int Most, int Lines>
void multiply_columns(const TiledPart& p, const Rows& rows, std::int64_t panel, std::int64_t first,
                      std::int64_t column) {
    constexpr auto kCounts = std::make_integer_sequence<int, Most>();
    const float* const from = p.filters + panel * panel_floats(p.shape) + first * kPanel;
    const Finish finishes[kPanelBlocks] = {{p, panel * kPanelBlocks}, {p, panel * kPanelBlocks + 1}};
    const std::int64_t elements = std::min(kPanelChain, p.shape.channels - first);
    const bool is_last = first + elements == p.shape.channels;
    const std::int64_t groups = (rows.count + Most - 1) / Most;
    std::int64_t begin = 0;
    for (std::int64_t group = 0; group < groups; ++group) {
        const std::int64_t some = (rows.count - begin + groups - group - 1) / (groups - group);
        const float* const next = from + (kPanelChain + elements * group / groups) * kPanel;
        chain_of<Vectors, Lines>(
            some, kCounts)({rows.first + begin * rows.step + first, rows.step, from + column, elements, next,
                            rows.products + begin * kPanel + column, first > 0,
                            is_last ? finishes + column / kBlock : nullptr, rows.position + begin});
        begin += some;
    }
}

void multiply_panel(const TiledPart& p, const Rows& rows, std::int64_t panel) {
    const std::int64_t columns = std::min(kPanel, p.shape.filters - panel * kPanel);
    const std::int64_t groups = (rows.count + kWholeRows - 1) / kWholeRows;
    // A single group reads each element once, which the processor prefetches better.
    const auto multiply = groups == 1              ? multiply_columns<kPanelVectors, kWholeRows, 0>
                          : groups < kPanelVectors ? multiply_columns<kPanelVectors, kWholeRows, 2>
                                                   : multiply_columns<kPanelVectors, kWholeRows, 1>;
    for (std::int64_t first = 0; first < p.shape.channels; first += kPanelChain) {
        if (columns > kPanel - kWide) {
            multiply(p, rows, panel, first, 0);
            continue;
        }
        for (std::int64_t column = 0; column < columns; column += kBlock) {
            columns - column > kWide ? multiply_columns<kVectors, kRegisterRows, 2>(p, rows, panel, first, column)
                                     : multiply_columns<1, kRegisterRows, 2>(p, rows, panel, first, column);
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
