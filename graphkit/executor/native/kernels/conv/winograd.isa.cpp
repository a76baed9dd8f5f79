// Convolution with windows of 3 x 3 by Winograd's minimal filtering F(2x2, 3x3): 16 multiplications instead of the 36
// of the direct method.
//
//     y = A^T [(G g G^T) * (B^T d B)] A, summed over the channels before A is applied
//
// (S. Winograd, Arithmetic Complexity of Computations, 1980; A. Lavin and S. Gray, Fast Algorithms for Convolutional
// Neural Networks, 2016.) The sum over the channels is a matrix product for each of the 16 places of a tile. It is
// computed in chains of kChain channels, so that its rounding error is that of a short sum.
//
// All 16 elements of a tile affect each of its results, but by definition a result depends on only nine of them. The
// code checks whether the others do harm. A tile is computed by the direct method if a result is not finite, or if the
// largest element of the tile is more than kMostRange times as large as the largest of one of its windows. The result
// of a window of zeros is zero.
#include "kernels/conv/tiles.h"

namespace graphkit {
namespace {

constexpr int kPlanes = 16;
// The original filters are stored as well: some taps are equal to planes of the transformed filters, the others follow
// these planes.
constexpr int kStoredPlanes = kPlanes + 5;
constexpr int kPlaneOfTap[9] = {0, 16, 3, 17, 18, 19, 12, 20, 15};
constexpr std::int64_t kChain = 32;
// Largest ratio of a tile's elements to a window's. The error of a result grows with it, from 2e-7 of its largest term.
constexpr float kMostRange = 256;
// Filters above 2^20 (about 1e6) overflow when multiplied by this; they are computed by the direct method.
constexpr float kHugeScale = 0x1p108F;

// G g G^T of the taps of a window.
inline void transform_filter(const Lanes (&g)[9], Lanes (&u)[kPlanes]) {
    const Lanes half = splat(0.5F);
    Lanes rows[4][3];
    for (int i = 0; i < 3; ++i) {
        const Lanes even = (g[i] + g[6 + i]) * half;
        const Lanes odd = g[3 + i] * half;
        rows[0][i] = g[i];
        rows[1][i] = even + odd;
        rows[2][i] = even - odd;
        rows[3][i] = g[6 + i];
    }
    for (int r = 0; r < 4; ++r) {
        const Lanes even = (rows[r][0] + rows[r][2]) * half;
        const Lanes odd = rows[r][1] * half;
        u[4 * r] = rows[r][0];
        u[4 * r + 1] = even + odd;
        u[4 * r + 2] = even - odd;
        u[4 * r + 3] = rows[r][2];
    }
}

// Returns the larger of two absolute values. If one is NaN, the result is either of them.
inline Lanes larger(Lanes a, Lanes b) {
#if defined(__AVX512F__)
    return bit_cast<Lanes>(_mm512_range_ps(bit_cast<__m512>(a), bit_cast<__m512>(b), 0b1011));
#else
    const auto absolute = [](Lanes x) { return x < Lanes{} ? -x : x; };
    return max_of<float>(absolute(a), absolute(b));
#endif
}

// Floats of one of the planes of a block of transformed filters, [channels, kBlock].
constexpr std::int64_t plane_floats(std::int64_t channels) {
    return channels * kBlock + 16;
}

bool transform_filters(const TiledShape& s, const TiledFilters& f) {
    const std::int64_t plane = plane_floats(s.channels);
    float* to = f.to + f.first_channel * kBlock;
    Lanes watch{};
    for (std::int64_t c = 0; c < f.channels; ++c) {
        float taps[9][kBlock];
        for (int t = 0; t < 9; ++t) {
            for (std::int64_t m = 0; m < kBlock; ++m) {
                taps[t][m] = given_filter(f, m, c, t);
            }
        }
        for (int v = 0; v < kVectors; ++v) {
            float* at = to + c * kBlock + v * kWide;
            Lanes g[9];
            Lanes u[kPlanes];
            for (int t = 0; t < 9; ++t) {
                g[t] = load<float>(taps[t] + v * kWide);
                store(at + kPlaneOfTap[t] * plane, g[t]);
            }
            transform_filter(g, u);
            for (int i = 0; i < kPlanes; ++i) {
                store(at + i * plane, u[i]);
                watch += not_finite(u[i] * splat(kHugeScale));
            }
        }
    }
    return is_sound(watch);
}

// The tiles of a part, one after the other.
class Tiles {
  public:
    Tiles(const TiledShape& shape, std::int64_t first) : shape_(shape) {
        const std::int64_t line = first / shape.tile_columns();
        column_ = first % shape.tile_columns();
        row_ = line % shape.tile_rows();
        image_ = line / shape.tile_rows();
    }

    void advance() {
        if (++column_ == shape_.tile_columns()) {
            column_ = 0;
            if (++row_ == shape_.tile_rows()) {
                row_ = 0;
                ++image_;
            }
        }
    }

    std::int64_t image() const { return image_; }
    // Row and column of the tile's first result.
    std::int64_t row() const { return first_result(row_, shape_.dilations[0]); }
    std::int64_t column() const { return first_result(column_, shape_.dilations[1]); }

  private:
    static std::int64_t first_result(std::int64_t tile, std::int64_t dilation) {
        return dilation == 1 ? 2 * tile : tile / dilation * 2 * dilation + tile % dilation;
    }

    const TiledShape& shape_;
    std::int64_t image_, row_, column_;
};

// For each of a tile's 4 x 4 elements, the row of its channels; `zeros` in the padding.
struct Tile {
    const float* elements[kPlanes];
};

inline Tile tile_at(const TiledPart& p, const Tiles& at, const float* zeros) {
    const TiledShape& s = p.shape;
    const std::int64_t top = at.row() - s.pad_top;
    const std::int64_t left = at.column() - s.pad_left;
    const std::int64_t first = ((at.image() * s.height + top) * s.width + left) * s.channels;
    const std::int64_t down = s.dilations[0] * s.width * s.channels;
    const std::int64_t right = s.dilations[1] * s.channels;
    Tile tile;
    if (top >= 0 && top + 3 * s.dilations[0] < s.height && left >= 0 && left + 3 * s.dilations[1] < s.width) {
        for (int i = 0; i < kPlanes; ++i) {
            tile.elements[i] = p.x + (first + i / 4 * down + i % 4 * right);
        }
        return tile;
    }
    for (int i = 0; i < kPlanes; ++i) {
        const std::int64_t h = top + i / 4 * s.dilations[0];
        const std::int64_t w = left + i % 4 * s.dilations[1];
        const bool inside = h >= 0 && h < s.height && w >= 0 && w < s.width;
        tile.elements[i] = inside ? p.x + (first + i / 4 * down + i % 4 * right) : zeros;
    }
    return tile;
}

// Computes the largest absolute values in the four windows of a tile, lane by lane.
inline void largest_in_windows(const Lanes (&d)[4][4], Lanes (&windows)[4]) {
    Lanes columns[2][4];
    for (int s = 0; s < 4; ++s) {
        const Lanes middle = larger(d[1][s], d[2][s]);
        columns[0][s] = larger(d[0][s], middle);
        columns[1][s] = larger(middle, d[3][s]);
    }
    for (int r = 0; r < 2; ++r) {
        const Lanes middle = larger(columns[r][1], columns[r][2]);
        windows[2 * r] = larger(windows[2 * r], larger(columns[r][0], middle));
        windows[2 * r + 1] = larger(windows[2 * r + 1], larger(middle, columns[r][3]));
    }
}

// Computes B^T d B for some channels of a tile, and writes it to `to`, whose planes are `plane` floats apart.
template <typename Load>
inline void transform_tile(const Tile& tile, std::int64_t plane, float* to, Lanes (&windows)[4], Load&& load_lanes) {
    Lanes d[4][4];
    for (int i = 0; i < kPlanes; ++i) {
        d[i / 4][i % 4] = load_lanes(tile.elements[i]);
    }
    largest_in_windows(d, windows);
    Lanes rows[4][4];
    for (int s = 0; s < 4; ++s) {
        rows[0][s] = d[0][s] - d[2][s];
        rows[1][s] = d[1][s] + d[2][s];
        rows[2][s] = d[2][s] - d[1][s];
        rows[3][s] = d[1][s] - d[3][s];
    }
    for (int r = 0; r < 4; ++r) {
        store(to + (4 * r) * plane, rows[r][0] - rows[r][2]);
        store(to + (4 * r + 1) * plane, rows[r][1] + rows[r][2]);
        store(to + (4 * r + 2) * plane, rows[r][2] - rows[r][1]);
        store(to + (4 * r + 3) * plane, rows[r][1] - rows[r][3]);
    }
}

// How to treat the results of a tile. Bit i: window i is zero. kByDefinition: the elements differ too much in size. NaN
// counts as zero here, because it shows in the results.
using Care = std::uint8_t;
constexpr Care kByDefinition = 16;

inline Care care_of(const Lanes (&windows)[4]) {
    float most[4];
    float all = 0;
    for (int i = 0; i < 4; ++i) {
        most[i] = across<LargestNumber<float>, float>(windows[i]);
        all = all < most[i] ? most[i] : all;
    }
    int care = 0;
    for (int i = 0; i < 4; ++i) {
        if (most[i] == 0) {
            care |= 1 << i;
        } else if (all > kMostRange * most[i]) {
            care |= kByDefinition;
        }
    }
    return static_cast<Care>(care);
}

// Transforms all tiles of a part, to [planes, tiles, row].
void transform_tiles(const TiledPart& p, const float* zeros, float* to, Care* care) {
    const std::int64_t channels = p.shape.channels;
    const std::int64_t row = row_floats(channels);
    Tiles at(p.shape, p.first_tile);
    for (std::int64_t t = 0; t < p.tiles; ++t, to += row, at.advance()) {
        const Tile tile = tile_at(p, at, zeros);
        Lanes windows[4] = {};
        std::int64_t c = 0;
        for (; c + kWide <= channels; c += kWide) {
            transform_tile(tile, p.tiles * row, to + c, windows,
                           [&](const float* from) { return load<float>(from + c); });
        }
        if (c < channels) {
            transform_tile(tile, p.tiles * row, to + c, windows,
                           [&](const float* from) { return load_part<float>(from + c, channels - c, 0); });
        }
        care[t] = care_of(windows);
    }
}

// Computes one block's results of a tile by the direct method: sums over the elements inside of the image.
__attribute__((noinline)) void by_definition(const TiledPart& p, const Tile& tile, const float* zeros,
                                             std::int64_t block, Lanes (&y)[4][kVectors]) {
    const std::int64_t channels = p.shape.channels;
    const std::int64_t plane = plane_floats(channels);
    const float* filters = p.filters + block * kStoredPlanes * plane;
    for (int v = 0; v < kVectors; ++v) {
        Lanes whole[4] = {};
        for (std::int64_t begin = 0; begin < channels; begin += kChain) {
            Lanes sums[4] = {};
            for (std::int64_t c = begin; c < std::min(begin + kChain, channels); ++c) {
                Lanes g[9];
                for (int t = 0; t < 9; ++t) {
                    g[t] = load<float>(filters + kPlaneOfTap[t] * plane + c * kBlock + v * kWide);
                }
                for (int result = 0; result < 4; ++result) {
                    for (int t = 0; t < 9; ++t) {
                        const float* element = tile.elements[(result / 2 + t / 3) * 4 + result % 2 + t % 3];
                        if (element != zeros) {
                            sums[result] += splat(element[c]) * g[t];
                        }
                    }
                }
            }
            for (int result = 0; result < 4; ++result) {
                whole[result] += sums[result];
            }
        }
        for (int result = 0; result < 4; ++result) {
            y[result][v] = whole[result];
        }
    }
}

// Computes A^T m A from the products of a tile, whose planes are `plane` floats apart.
inline void transform_back(const float* products, std::int64_t plane, Lanes (&y)[4][kVectors]) {
    for (int v = 0; v < kVectors; ++v) {
        Lanes rows[2][4];
        for (int s = 0; s < 4; ++s) {
            const float* from = products + s * plane + v * kWide;
            const Lanes first = load<float>(from);
            const Lanes second = load<float>(from + 4 * plane);
            const Lanes third = load<float>(from + 8 * plane);
            rows[0][s] = first + second + third;
            rows[1][s] = second - third - load<float>(from + 12 * plane);
        }
        for (int r = 0; r < 2; ++r) {
            y[2 * r][v] = rows[r][0] + rows[r][1] + rows[r][2];
            y[2 * r + 1][v] = rows[r][1] - rows[r][2] - rows[r][3];
        }
    }
}

inline bool is_finite(const Lanes (&y)[4][kVectors]) {
    Lanes watch{};
    for (const auto& results : y) {
        for (const Lanes& result : results) {
            watch += not_finite(result);
        }
    }
    return is_sound(watch);
}

// Computes and stores the results of one block from its products [planes, tiles, kBlock].
void store_block(const TiledPart& p, const float* zeros, const float* products, std::int64_t block, const Care* care,
                 bool all_by_definition) {
    const TiledShape& s = p.shape;
    const Finish finish(p, block);
    Tiles at(s, p.first_tile);
    for (std::int64_t t = 0; t < p.tiles; ++t, at.advance()) {
        Lanes y[4][kVectors];
        if (!all_by_definition) {
            transform_back(products + t * kBlock, p.tiles * kBlock, y);
        }
        if (all_by_definition || care[t] >= kByDefinition || !is_finite(y)) {
            by_definition(p, tile_at(p, at, zeros), zeros, block, y);
        } else if (care[t] != 0) {
            for (int i = 0; i < 4; ++i) {
                if ((care[t] >> i & 1) != 0) {
                    y[i][0] = y[i][1] = Lanes{};
                }
            }
        }
        const std::int64_t row = at.row();
        const std::int64_t column = at.column();
        for (int i = 0; i < 4; ++i) {
            const std::int64_t h = row + i / 2 * s.dilations[0];
            const std::int64_t w = column + i % 2 * s.dilations[1];
            if (h < s.out_height && w < s.out_width) {
                finish(y[i], (at.image() * s.out_height + h) * s.out_width + w);
            }
        }
    }
}

std::int64_t winograd_tiles(const TiledShape& s) {
    return s.tile_rows() * s.tile_columns();
}

std::int64_t winograd_filter_floats(const TiledShape& s) {
    return kStoredPlanes * plane_floats(s.channels);
}

// Floats for a row of zeros, the transformed tiles, and their products with a block.
std::int64_t winograd_scratch_floats(const TiledShape& s, std::int64_t tiles) {
    return row_floats(s.channels) + kPlanes * tiles * (row_floats(s.channels) + kBlock);
}

void run_winograd(const TiledPart& p) {
    const std::int64_t channels = p.shape.channels;
    const std::int64_t row = row_floats(channels);
    const std::int64_t plane = plane_floats(channels);
    float* zeros = p.scratch;
    float* tiles = zeros + row;
    float* products = tiles + kPlanes * p.tiles * row;
    for (std::int64_t c = 0; c < row; c += kWide) {
        store(zeros + c, Lanes{});
    }
    Care care[kPartTiles];
    transform_tiles(p, zeros, tiles, care);
    for (std::int64_t block = p.first_block; block < p.end_block; ++block) {
        const bool all_by_definition = any_unsound(p, block);
        for (int i = 0; i < kPlanes && !all_by_definition; ++i) {
            multiply(p.tiles, tiles + i * p.tiles * row, row, p.filters + (block * kStoredPlanes + i) * plane, channels,
                     kChain, products + i * p.tiles * kBlock);
        }
        store_block(p, zeros, products, block, care, all_by_definition);
    }
}

std::int64_t winograd_part_tiles(const TiledShape&) {
    return kPartTiles;
}

}  // namespace

GRAPHKIT_ISA_DEFINE(TiledTable, winograd_table) = {kBlock,
                                                   winograd_part_tiles,
                                                   winograd_tiles,
                                                   winograd_filter_floats,
                                                   winograd_scratch_floats,
                                                   transform_filters,
                                                   run_winograd};

}  // namespace graphkit
