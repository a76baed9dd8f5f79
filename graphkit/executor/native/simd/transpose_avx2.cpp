#ifdef GRAPHKIT_X86_KERNELS
#include "simd/transpose.h"

#include "simd/transpose_tables.h"

namespace graphkit {

constinit const TransposeTable kTransposeAvx2 = kTransposes;

}  // namespace graphkit
#endif
