#ifdef GRAPHKIT_X86_KERNELS
#include "simd/pooling.h"

namespace graphkit {

constinit const PoolFunctions kAvx512Pools = kPoolFunctions;

}  // namespace graphkit
#endif
