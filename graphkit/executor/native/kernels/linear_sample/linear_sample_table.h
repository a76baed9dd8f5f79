// The inner loops of LinearSample, compiled for several instruction sets.
#pragma once

#include <cstdint>

#include "runtime/isa.h"

namespace graphkit {

// Samples of one image at `count` points.
struct LinearSamples {
    const float* image;  // [height, width, channels]; readable for one vector behind the last element
    const float* zeros;  // as many zeros as channels, rounded up to whole vectors; read only by `sample`
    std::int64_t height, width, channels;
    const float* rows;  // coordinates of the points along the height
    const float* columns;
    std::int64_t count;
    bool border;  // outside of the image, read the nearest element, otherwise 0
    float* y;     // [count, channels]
};

struct LinearSampleTable {
    std::int64_t lanes;
    void (*sample)(const LinearSamples& samples);
    // The same bits, for an image [channels, height, width] that is read only at the points.
    void (*sample_planes)(const LinearSamples& samples);
    // For images with one channel and less than 2^31 elements, which are read only at the points.
    void (*sample_plane)(const LinearSamples& samples);
};

GRAPHKIT_ISA_TABLE(LinearSampleTable, linear_sample_table);

}  // namespace graphkit
