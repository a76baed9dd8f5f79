#include "simd/pointwise.h"

namespace graphkit {

constinit const PointwiseTable kPointwiseBaseline = make_pointwise_table();

}  // namespace graphkit
