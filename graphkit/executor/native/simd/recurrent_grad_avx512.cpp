#ifdef GRAPHKIT_X86_KERNELS

#include "simd/recurrent_grad.h"

namespace graphkit {

constinit const RecurrentGradTable recurrent_grad_avx512 = kRecurrentGrad;

}  // namespace graphkit

#endif
