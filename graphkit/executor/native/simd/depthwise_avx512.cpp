#ifdef GRAPHKIT_X86_KERNELS
#include "simd/depthwise.h"

namespace graphkit {

constinit const DepthwiseFunctions kAvx512Depthwise = kDepthwiseFunctions;

}  // namespace graphkit
#endif
