#ifdef GRAPHKIT_X86_KERNELS
#include "simd/pooling_grad.h"

namespace graphkit {

constinit const PoolGradientFunctions kAvx512PoolGradients = kPoolGradientFunctions;

}  // namespace graphkit
#endif
