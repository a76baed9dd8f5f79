#include "simd/pooling.h"

namespace graphkit {

constinit const PoolFunctions kBaselinePools = kPoolFunctions;

}  // namespace graphkit
