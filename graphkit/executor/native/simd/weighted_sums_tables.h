// The tables that simd/weighted_sums_<isa>.cpp define.
#pragma once

#include "resample.h"

namespace graphkit {

extern const ResampleTable kResampleBaseline;
extern const ResampleTable kResampleAvx2;
extern const ResampleTable kResampleAvx512;

}  // namespace graphkit
