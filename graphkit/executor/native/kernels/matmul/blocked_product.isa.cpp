// Products of blocks of matrices.
//
// A tile of results stays in registers while a part of the depth is processed. Columns of b are copied into panels as
// wide as a tile. The first tile of rows reads b in place and copies it on the way, so that the copy costs no time of
// its own. Few rows are multiplied panel by panel, which stays in the first-level cache. Many rows are multiplied tile
// by tile: then the rows of a stay there.
#include "kernels/matmul/blocked_product.h"

#include <algorithm>

#include "simd/across_each.h"
#include "simd/row_loops.h"

namespace graphkit {
namespace {

#if defined(__AVX512F__)
constexpr int kTileRows = 8;
#else
constexpr int kTileRows = 4;
#endif
constexpr int kTileVectors = 3;
// Vectors of columns from which a single row is multiplied by whole rows of b.
constexpr int kRowVectors = 12;
// Vectors of a row whose products are summed separately in a dot product.
constexpr int kDotVectors = 4;
// Number of products in a chain of sums. A panel with this depth fits into the first-level cache.
constexpr std::int64_t kDepth = 256;
// With at most this many rows, each panel stays in the first-level cache until all rows are multiplied by it.
constexpr std::int64_t kPanelRows = 128;
constexpr std::int64_t kPanels = 16;
// With fewer panels, copying columns of a takes longer than reading them in place.
constexpr std::int64_t kFewPanels = 2;

template <typename T>
constexpr std::int64_t kTileColumns = kTileVectors * kLanes<T>;

// A tile of results: `a` and `b` begin at its first element; `b` is a panel.
template <typename T>
struct Tile {
    const T* a;
    std::int64_t a_row, a_depth;
    const T* b;
    std::int64_t b_depth;
    std::int64_t depth;
    T* y;
    std::int64_t y_row;
    std::int64_t columns;
    bool adds;
    T* panel;  // where a tile that packs copies b to
    const T* next;  // the rows of b that a tile which does not pack prefetches, one line of each
    std::int64_t next_step;
};

template <typename T, int Rows, int Vectors, bool Packs>
__attribute__((noinline)) void multiply_tile(const Tile<T>& tile) {
    constexpr std::int64_t kAhead = 8;  // rows of b that are prefetched
    Vector<T> sums[Rows][Vectors] = {};
    const T* a = tile.a;
    const T* b = tile.b;
    [[maybe_unused]] T* panel = tile.panel;
    [[maybe_unused]] const T* next = tile.next;
    const std::int64_t a_row = tile.a_row;
    for (int r = 0; r < Rows; ++r) {
        for (int v = 0; v < Vectors; ++v) {
            __builtin_prefetch(tile.y + r * tile.y_row + v * kLanes<T>, 1);
        }
    }
    for (std::int64_t k = 0; k < tile.depth; ++k, a += tile.a_depth, b += tile.b_depth) {
        Vector<T> column[Vectors];
        for (int v = 0; v < Vectors; ++v) {
            column[v] = in_register(load<T>(b + v * kLanes<T>));
            if constexpr (Packs) {
                __builtin_prefetch(b + kAhead * tile.b_depth + v * kLanes<T>);
                store(panel + v * kLanes<T>, column[v]);
            }
        }
        if constexpr (Packs) {
            panel += kTileColumns<T>;
        } else {
            __builtin_prefetch(next, 0, 2);
            next += tile.next_step;
        }
        for (int r = 0; r < Rows; ++r) {
            const Vector<T> factor = splat(a[r * a_row]);
            for (int v = 0; v < Vectors; ++v) {
                sums[r][v] += factor * column[v];
            }
        }
    }
    const std::int64_t last = tile.columns - (Vectors - 1) * kLanes<T>;
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
        T* to = tile.y + r * tile.y_row;
        for (int v = 0; v < Vectors; ++v, to += kLanes<T>) {
            if (v + 1 < Vectors || last == kLanes<T>) {
                store(to, tile.adds ? load<T>(to) + sums[r][v] : sums[r][v]);
            } else {
                const Vector<T> sum = tile.adds ? load_part<T>(to, last, 0) + sums[r][v] : sums[r][v];
                store_part<T>(to, sum, last);
            }
        }
    }
}

template <typename T, int Rows, bool Packs = false>
inline void multiply_rows(const Tile<T>& tile) {
    if (tile.columns > 2 * kLanes<T>) {
        multiply_tile<T, Rows, 3, Packs>(tile);
    } else if (tile.columns > kLanes<T>) {
        multiply_tile<T, Rows, 2, Packs>(tile);
    } else {
        multiply_tile<T, Rows, 1, Packs>(tile);
    }
}

// Multiplies a tile of any number of rows up to kTileRows.
template <typename T>
inline void multiply_some(Tile<T> tile, std::int64_t rows) {
    const auto next = [&](std::int64_t done) {
        tile.a += done * tile.a_row;
        tile.y += done * tile.y_row;
        rows -= done;
    };
    if (rows == kTileRows) {
        multiply_rows<T, kTileRows>(tile);
        return;
    }
    if (kTileRows > 4 && rows >= 4) {
        multiply_rows<T, 4>(tile);
        next(4);
    }
    if (rows >= 2) {
        multiply_rows<T, 2>(tile);
        next(2);
    }
    if (rows >= 1) {
        multiply_rows<T, 1>(tile);
    }
}

// Copies `columns` columns of b into a panel, and pads it with zeros.
template <typename T>
void copy_panel(const ProductBlock<T>& p, const T* b, std::int64_t depth, std::int64_t columns, T* panel) {
    constexpr std::int64_t kWidth = kTileColumns<T>;
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
    if (p.b_column == 1) {
        for (std::int64_t k = 0; k < depth; ++k, b += p.b_depth, panel += kWidth) {
            for (std::int64_t c = 0; c < kWidth; c += kLanes<T>) {
                const std::int64_t left = std::clamp<std::int64_t>(columns - c, 0, kLanes<T>);
                store(panel + c, left == kLanes<T> ? load<T>(b + c) : load_part<T>(b + c, left, 0));
            }
        }
        return;
    }
    if (columns < kWidth) {
        std::fill_n(panel, depth * kWidth, T(0));
    }
    if (p.b_depth == 1) {
        p.transpose(reinterpret_cast<const std::byte*>(b), reinterpret_cast<std::byte*>(panel), p.b_column * kSize,
                    kWidth * kSize, depth, columns, false);
        return;
    }
    for (std::int64_t c = 0; c < columns; ++c) {
        for (std::int64_t k = 0; k < depth; ++k) {
            panel[k * kWidth + c] = b[k * p.b_depth + c * p.b_column];
        }
    }
}

// Multiplies one row by a part of b, whose rows are read as a whole, in the order of memory. At most kPanels panels.
template <typename T>
void multiply_row(const T* a, std::int64_t a_depth, const T* b, std::int64_t b_depth, std::int64_t depth, T* y,
                  std::int64_t columns, bool adds) {
    constexpr int kTogether = 8;
    alignas(kVectorBytes) T sums[kPanels * kTileColumns<T>];
    std::fill_n(sums, columns, T{0});
    const auto add_rows = [&](std::int64_t k, auto count) {
        constexpr int kRows = decltype(count)::value;
        Vector<T> factors[kRows];
        for (int r = 0; r < kRows; ++r) {
            factors[r] = splat(a[(k + r) * a_depth]);
        }
        const T* const from = b + k * b_depth;
        map_row(sums, columns, [&](auto&& read) {
            Vector<T> sum = read(sums, T{0});
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                sum += factors[r] * read(from + r * b_depth, T{0});
            }
            return sum;
        });
    };
    std::int64_t k = 0;
    for (; k + kTogether <= depth; k += kTogether) {
        add_rows(k, std::integral_constant<int, kTogether>{});
    }
    for (; k < depth; ++k) {
        add_rows(k, std::integral_constant<int, 1>{});
    }
    map_row(y, columns, [&](auto&& read) {
        const Vector<T> sum = read(sums, T{0});
        return adds ? read(y, T{0}) + sum : sum;
    });
}

// Copies rows of a with any strides into a tile: the rows of each column are contiguous.
template <typename T>
void copy_rows(const T* a, std::int64_t a_row, std::int64_t a_depth, std::int64_t rows, std::int64_t depth, T* copied) {
    for (std::int64_t k = 0; k < depth; ++k, a += a_depth, copied += kTileRows) {
        if (a_row == 1 && rows == kTileRows) {
            __builtin_memcpy(copied, a, kTileRows * sizeof(T));
        } else {
            for (std::int64_t r = 0; r < rows; ++r) {
                copied[r] = a[r * a_row];
            }
        }
    }
}

// A part of the depth of a block of a product.
template <typename T>
struct Part {
    const ProductBlock<T>& p;
    std::int64_t first, depth;
    bool copies;  // the rows of a are copied into tiles

    std::int64_t room() const { return std::min(kDepth, p.depth); }
    // Panels come first, so that each is aligned to vectors.
    T* panel(std::int64_t column) const { return p.scratch + column * room(); }
    T* copied(std::int64_t row) const {
        constexpr std::int64_t kWidth = kTileColumns<T>;
        return panel((p.columns + kWidth - 1) / kWidth * kWidth) + row * room();
    }
    const T* a(std::int64_t row) const { return p.a + row * p.a_row + first * p.a_depth; }
    const T* b(std::int64_t column) const { return p.b + first * p.b_depth + column * p.b_column; }
};

// Multiplies the tile of results that begins at `row` and `column`. The rows of a are at `copied` if they are copied.
template <typename T>
void multiply_at(const Part<T>& part, std::int64_t row, std::int64_t column, const T* copied) {
    constexpr std::int64_t kWidth = kTileColumns<T>;
    const ProductBlock<T>& p = part.p;
    Tile<T> tile{};
    tile.a = part.copies ? copied : part.a(row);
    tile.a_row = part.copies ? 1 : p.a_row;
    tile.a_depth = part.copies ? kTileRows : p.a_depth;
    tile.depth = part.depth;
    tile.y = p.y + row * p.y_row + column;
    tile.y_row = p.y_row;
    tile.columns = std::min(kWidth, p.columns - column);
    tile.adds = part.first > 0;
    tile.panel = part.panel(column);
    tile.next = tile.panel;
    // If only few rows read the panels, they are not copied, except for an incomplete last one.
    const bool few_rows = p.rows <= kTileRows;
    const bool whole = p.b_column == 1 && tile.columns % kLanes<T> == 0;
    if (whole && (row == 0 || few_rows)) {
        tile.b = part.b(column);
        tile.b_depth = p.b_depth;
        if (!few_rows) {
            return multiply_rows<T, kTileRows, true>(tile);
        }
    } else {
        if (row == 0) {
            copy_panel(p, part.b(column), part.depth, tile.columns, tile.panel);
        }
        tile.b = tile.panel;
        tile.b_depth = kWidth;
    }
    // The tiles behind the first one prefetch what that of the next panel reads: each one line of a row.
    const std::int64_t line = row / kTileRows - 1;
    if (p.b_column == 1 && p.rows <= kPanelRows && line >= 0 && line < kTileVectors) {
        const std::int64_t next = column + kWidth + line * kLanes<T>;
        if (next < p.columns) {
            tile.next = part.b(next);
            tile.next_step = p.b_depth;
        }
    }
    multiply_some(tile, std::min<std::int64_t>(kTileRows, p.rows - row));
}

// Multiplies a part of the depth, from element `first` on.
template <typename T>
void multiply_part(const ProductBlock<T>& p, std::int64_t first, std::int64_t depth) {
    constexpr std::int64_t kWidth = kTileColumns<T>;
    const bool copies = p.a_depth != 1 && p.columns > kFewPanels * kWidth && p.rows >= kTileRows;
    const Part<T> part{p, first, depth, copies};
    const auto copy = [&](std::int64_t row, T* copied) {
        if (copies) {
            copy_rows(part.a(row), p.a_row, p.a_depth, std::min<std::int64_t>(kTileRows, p.rows - row), depth, copied);
        }
    };
    if (p.rows <= kPanelRows) {
        for (std::int64_t row = 0; row < p.rows; row += kTileRows) {
            copy(row, part.copied(row));
        }
        for (std::int64_t column = 0; column < p.columns; column += kWidth) {
            for (std::int64_t row = 0; row < p.rows; row += kTileRows) {
                multiply_at(part, row, column, part.copied(row));
            }
        }
        return;
    }
    for (std::int64_t row = 0; row < p.rows; row += kTileRows) {
        copy(row, part.copied(0));
        for (std::int64_t column = 0; column < p.columns; column += kWidth) {
            multiply_at(part, row, column, part.copied(0));
        }
    }
}

// Computes row by row, so that results are written in the order of memory: with so small a depth, that takes longer
// than the sums.
template <typename T, int Depth>
void multiply_shallow(const ProductBlock<T>& p) {
    for (std::int64_t row = 0; row < p.rows; ++row) {
        const T* a = p.a + row * p.a_row;
        map_row(p.y + row * p.y_row, p.columns, [&](auto&& read) {
            Vector<T> sum = read(p.b, T{0}) * a[0];
#pragma GCC unroll 4
            for (int k = 1; k < Depth; ++k) {
                sum += read(p.b + k * p.b_depth, T{0}) * a[k * p.a_depth];
            }
            return sum;
        });
    }
}

template <typename T>
void multiply(const ProductBlock<T>& p) {
    if (p.depth <= kShallowDepth && p.b_column == 1) {
        static_assert(kShallowDepth == 4);
        switch (p.depth) {
            case 1:
                return multiply_shallow<T, 1>(p);
            case 2:
                return multiply_shallow<T, 2>(p);
            case 3:
                return multiply_shallow<T, 3>(p);
            default:
                return multiply_shallow<T, 4>(p);
        }
    }
    const bool by_rows = p.rows == 1 && p.b_column == 1 && p.columns >= kRowVectors * kLanes<T>;
    for (std::int64_t first = 0; first < p.depth; first += kDepth) {
        const std::int64_t depth = std::min(kDepth, p.depth - first);
        if (by_rows) {
            multiply_row(p.a + first * p.a_depth, p.a_depth, p.b + first * p.b_depth, p.b_depth, depth, p.y, p.columns,
                         first > 0);
        } else {
            multiply_part(p, first, depth);
        }
    }
}

template <typename T, int Rows>
inline void dot_rows(const ProductDots<T>& p, std::int64_t row) {
    constexpr int kVectors = kDotVectors;
    constexpr std::int64_t kStep = kVectors * kLanes<T>;
    Vector<T> sums[Rows][kVectors] = {};
    const T* a[Rows];
    for (int r = 0; r < Rows; ++r) {
        a[r] = p.a + (row + r) * p.a_row;
    }
    std::int64_t k = 0;
    for (; k + kStep <= p.depth; k += kStep) {
        for (int v = 0; v < kVectors; ++v) {
            const Vector<T> x = load<T>(p.x + k + v * kLanes<T>);
            for (int r = 0; r < Rows; ++r) {
                sums[r][v] += load<T>(a[r] + k + v * kLanes<T>) * x;
            }
        }
    }
    for (; k < p.depth; k += kLanes<T>) {
        const std::int64_t count = std::min(kLanes<T>, p.depth - k);
        const Vector<T> x = load_part<T>(p.x + k, count, 0);
        for (int r = 0; r < Rows; ++r) {
            sums[r][0] += load_part<T>(a[r] + k, count, 0) * x;
        }
    }
    for (int r = 0; r < Rows; ++r) {
        p.y[row + r] = across<Add, T>((sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]));
    }
}

// Multiplies kLanes<T> rows of less than kDotVectors vectors at a time. Returns the number of rows.
template <typename T>
std::int64_t dot_short_rows(const ProductDots<T>& p) {
    constexpr auto lanes = static_cast<int>(kLanes<T>);
    std::int64_t row = 0;
    for (; row + lanes <= p.rows; row += lanes) {
        Vector<T> totals[lanes];
        for (int r = 0; r < lanes; ++r) {
            const T* const a = p.a + (row + r) * p.a_row;
            totals[r] = Vector<T>{};
            std::int64_t k = 0;
            for (; k + lanes <= p.depth; k += lanes) {
                totals[r] += load<T>(a + k) * load<T>(p.x + k);
            }
            if (k < p.depth) {
                totals[r] += load_part<T>(a + k, p.depth - k, 0) * load_part<T>(p.x + k, p.depth - k, 0);
            }
        }
        across_each<Add, T>(totals);
        store(p.y + row, totals[0]);
    }
    return row;
}

template <typename T>
void dots(const ProductDots<T>& p) {
    constexpr int kRows = kTileRows / 2;
    std::int64_t row = p.depth < kDotVectors * kLanes<T> ? dot_short_rows(p) : 0;
    for (; row + kRows <= p.rows; row += kRows) {
        dot_rows<T, kRows>(p, row);
    }
    for (; row < p.rows; ++row) {
        dot_rows<T, 1>(p, row);
    }
}

template <typename T>
std::int64_t scratch(std::int64_t columns, std::int64_t depth) {
    const std::int64_t panels = (columns + kTileColumns<T> - 1) / kTileColumns<T>;
    return (kPanelRows + panels * kTileColumns<T>)*std::min(kDepth, depth);
}

template <typename T>
constexpr ProductFunctions<T> functions() {
    return {multiply<T>, dots<T>, kTileColumns<T>, kPanels, kTileRows, scratch<T>};
}

}  // namespace

GRAPHKIT_ISA_DEFINE(ProductTable, product_table) = {functions<float>(), functions<double>(), functions<std::uint32_t>(),
                                                    functions<std::uint64_t>()};

}  // namespace graphkit
