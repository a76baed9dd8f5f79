// What a depthwise convolution of data with the channels last asks of vector code.
#pragma once

#include <cstdint>
#include <limits>

#include "runtime/isa.h"

namespace graphkit {

// What follows a sum: the bias of its channel, then negative x times `slope`, then from `low` to `high`. NaN stays.
struct DepthwiseFinish {
    const float* bias = nullptr;
    float slope = 1;
    float low = -std::numeric_limits<float>::infinity();
    float high = std::numeric_limits<float>::infinity();
};

// Rows of channels that `count` results side by side are made of: result i at out + i * out_step sums
// in[i * step + offsets[t]] * w[numbers[t] * channels] over the taps.
struct DepthwiseRun {
    const std::int64_t* offsets;
    const std::int64_t* numbers;
    std::int64_t taps;
    // Rows of the input that the next run will add, from where this one reads the first of its windows on.
    const std::int64_t* ahead;
    std::int64_t ahead_count;
    std::int64_t count;
    std::int64_t step;
    std::int64_t out_step;
    std::int64_t channels;
};

struct DepthwiseFunctions {
    void (*correlate)(const DepthwiseRun& run, const float* in, const float* w, const DepthwiseFinish& finish,
                      float* out);
    // w[numbers[t]] += in[i * step + offsets[t]] * out[i * out_step] over the run.
    void (*add_products)(const DepthwiseRun& run, const float* in, const float* out, float* w);
};

GRAPHKIT_ISA_TABLE(DepthwiseFunctions, depthwise_functions);

// Windows whose elements lie side by side, with `rows` lines of `columns` elements: result i at out + i * out_step is
// of the windows that begin at in + i * channels.
struct DepthwiseLine {
    const float* in;
    std::int64_t in_row;  // from line to line of a window
    const float* w;       // [rows, columns, channels]
    std::int64_t rows, columns;
    std::int64_t channels;
    std::int64_t count;
    float* out;
    std::int64_t out_step;
};

struct SlideTable {
    // Of 5 or 7 columns. The same bits as `correlate`.
    void (*slide)(const DepthwiseLine& line, const DepthwiseFinish& finish);
};

GRAPHKIT_ISA_TABLE(SlideTable, slide_table);

}  // namespace graphkit
