#ifdef GRAPHKIT_X86_KERNELS
#include "simd/philox.h"

#include "simd/philox_tables.h"

namespace graphkit {

constinit const PhiloxTable kPhiloxAvx2 = kDraws;

}  // namespace graphkit
#endif
