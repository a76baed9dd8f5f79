#include "simd/depthwise.h"

namespace graphkit {

constinit const DepthwiseFunctions kBaselineDepthwise = kDepthwiseFunctions;

}  // namespace graphkit
