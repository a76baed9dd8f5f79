// Convolution in tiles, compiled for several instruction sets.
//
// A part of the tiles is prepared for multiplication, then multiplied by one block of filters after the other while it
// is in the second-level cache. Products are summed in short chains.
#pragma once

#include <cstdint>
#include <limits>

#include "runtime/isa.h"

namespace graphkit {

// Number of channels whose filters share one soundness flag.
constexpr std::int64_t kTiledChunk = 64;

struct TiledShape {
    std::int64_t height, width, channels;  // of x, [N, height, width, channels]
    std::int64_t out_height, out_width, filters;  // of y, [N, out_height, out_width, filters]
    std::int64_t pad_top, pad_left;
    std::int64_t kernel[2], strides[2], dilations[2];

    // Always inlined: each instruction set compiles these, and the linker would keep only one copy.
    [[gnu::always_inline]] std::int64_t taps() const { return kernel[0] * kernel[1]; }
    // Winograd's tiles of 2 x 2 results, which are as far apart as the taps of a window.
    [[gnu::always_inline]] std::int64_t tile_rows() const { return tiles_along(out_height, dilations[0]); }
    [[gnu::always_inline]] std::int64_t tile_columns() const { return tiles_along(out_width, dilations[1]); }
    [[gnu::always_inline]] static std::int64_t tiles_along(std::int64_t results, std::int64_t dilation) {
        return (results + 2 * dilation - 1) / (2 * dilation) * dilation;
    }
    [[gnu::always_inline]] std::int64_t chunks() const { return (channels + kTiledChunk - 1) / kTiledChunk; }
};

// Some filters of a block, for some channels: element (m, c, tap) is w[m * filter_step + c * channel_step + tap *
// tap_step]. `to` is the whole block; missing filters become zero.
struct TiledFilters {
    const float* w;
    std::int64_t filter_step, channel_step, tap_step;
    std::int64_t filters;
    std::int64_t first_channel, channels;
    float* to;
};

// The epilogue: y = activation(product + bias + residual), or activation(product + bias) + residual. The activation
// multiplies negative values by `slope` and clamps to [low, high]. NaN stays NaN.
struct TiledEpilogue {
    const float* bias = nullptr;
    const float* residual = nullptr;  // in the layout of y
    float weight = 1;  // of the residual
    bool residual_last = false;
    float slope = 1;
    float low = -std::numeric_limits<float>::infinity();
    float high = std::numeric_limits<float>::infinity();
};

// Consecutive tiles of the batch, and some blocks of filters.
struct TiledPart {
    TiledShape shape;
    TiledEpilogue epilogue;
    const float* x;
    const float* filters;  // consecutive blocks
    const std::uint8_t* unsound;  // [blocks, chunks of channels]: 1 where `transform` returned false
    float* y;
    std::int64_t first_tile, tiles;
    std::int64_t first_block, end_block;
    float* scratch;
};

struct TiledTable {
    std::int64_t block;  // filters that are computed together
    std::int64_t (*part_tiles)(const TiledShape& shape);  // tiles of a part
    std::int64_t (*count)(const TiledShape& shape);  // tiles of an image
    std::int64_t (*filter_floats)(const TiledShape& shape);  // of a block
    std::int64_t (*scratch_floats)(const TiledShape& shape, std::int64_t tiles);  // of a part
    // Transforms filters. Returns whether they are sound: finite and far from overflow. Results of unsound filters are
    // computed by the direct method.
    bool (*transform)(const TiledShape& shape, const TiledFilters& filters);
    void (*run)(const TiledPart& part);
};

// Winograd's algorithm: windows of 3 x 3 with stride 1.
GRAPHKIT_ISA_TABLE(TiledTable, winograd_table);

// The direct method: any window.
GRAPHKIT_ISA_TABLE(TiledTable, direct_table);

// Windows of one element, without padding: products. The filters are in oneDNN's layout, and all are sound. Its block
// is 0 if the instruction set has no such table.
GRAPHKIT_ISA_TABLE(TiledTable, panels_table);

}  // namespace graphkit
