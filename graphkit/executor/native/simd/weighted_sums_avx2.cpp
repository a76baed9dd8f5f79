#ifdef GRAPHKIT_X86_KERNELS
#include "simd/weighted_sums.h"

#include "simd/weighted_sums_tables.h"

namespace graphkit {

constinit const ResampleTable kResampleAvx2 = kResamples;

}  // namespace graphkit
#endif
