// The vector functions of depthwise convolutions of channels-last data.
#pragma once

#include <cstdint>
#include <limits>

#include "runtime/isa.h"

namespace graphkit {

// The epilogue of a sum: adds the bias of its channel, multiplies negative values by `slope`, clamps to [low, high].
// NaN stays NaN.
struct DepthwiseFinish {
    const float* bias = nullptr;
    float slope = 1;
    float low = -std::numeric_limits<float>::infinity();
    float high = std::numeric_limits<float>::infinity();
};

// A run of `count` adjacent results. Result i, at out + i * out_step, is the sum over the taps t of in[i * step +
// offsets[t]] * w[numbers[t] * channels]. Each is a row of channels.
struct DepthwiseRun {
    const std::int64_t* offsets;
    const std::int64_t* numbers;
    std::int64_t taps;
    // Offsets of the input rows that the next run reads in addition, relative to the first window of this run.
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

// `count` adjacent results of windows with `rows` lines of `columns` adjacent elements. Result i, at out + i *
// out_step, is that of the window that begins at in + i * channels.
struct DepthwiseLine {
    const float* in;
    std::int64_t in_row;  // floats from line to line of a window
    const float* w;       // [rows, columns, channels]
    std::int64_t rows, columns;
    std::int64_t channels;
    std::int64_t count;
    float* out;
    std::int64_t out_step;
};

struct SlideTable {
    // For 5 or 7 columns. Gives the same bits as `correlate`.
    void (*slide)(const DepthwiseLine& line, const DepthwiseFinish& finish);
};

GRAPHKIT_ISA_TABLE(SlideTable, slide_table);

}  // namespace graphkit
