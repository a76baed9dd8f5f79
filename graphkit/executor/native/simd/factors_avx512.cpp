#ifdef GRAPHKIT_X86_KERNELS
#include "simd/factors.h"

#include "simd/factors_tables.h"

namespace graphkit {

constinit const FactorTable kFactorsAvx512 = kFactors;

}  // namespace graphkit
#endif
