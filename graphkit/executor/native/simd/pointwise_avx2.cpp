#ifdef GRAPHKIT_X86_KERNELS
#include "simd/pointwise.h"

namespace graphkit {

constinit const PointwiseTable kPointwiseAvx2 = make_pointwise_table();

}  // namespace graphkit
#endif
