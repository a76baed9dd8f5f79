#include "simd/weighted_sums.h"

#include "simd/weighted_sums_tables.h"

namespace graphkit {

constinit const ResampleTable kResampleBaseline = kResamples;

}  // namespace graphkit
