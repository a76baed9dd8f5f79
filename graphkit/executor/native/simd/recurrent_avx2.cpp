#ifdef GRAPHKIT_X86_KERNELS

#include "simd/recurrent.h"

namespace graphkit {

constinit const RecurrentTable recurrent_avx2 = kRecurrent;

}  // namespace graphkit

#endif
