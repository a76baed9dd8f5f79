#ifdef GRAPHKIT_X86_KERNELS
#include "simd/batch_norm.h"

namespace graphkit {

constinit const BatchNormFunctions kAvx512BatchNorms = kBatchNormFunctions;

}  // namespace graphkit
#endif
