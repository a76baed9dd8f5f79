#ifdef GRAPHKIT_X86_KERNELS

#include "simd/recurrent_grad.h"

namespace graphkit {

constinit const RecurrentGradTable recurrent_grad_avx2 = kRecurrentGrad;

}  // namespace graphkit

#endif
