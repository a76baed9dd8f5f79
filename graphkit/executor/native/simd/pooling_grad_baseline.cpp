#include "simd/pooling_grad.h"

namespace graphkit {

constinit const PoolGradientFunctions kBaselinePoolGradients = kPoolGradientFunctions;

}  // namespace graphkit
