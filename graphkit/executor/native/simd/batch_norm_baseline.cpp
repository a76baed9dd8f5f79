#include "simd/batch_norm.h"

namespace graphkit {

constinit const BatchNormFunctions kBaselineBatchNorms = kBatchNormFunctions;

}  // namespace graphkit
