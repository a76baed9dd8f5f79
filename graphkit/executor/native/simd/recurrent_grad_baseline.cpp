#include "simd/recurrent_grad.h"

namespace graphkit {

constinit const RecurrentGradTable recurrent_grad_baseline = kRecurrentGrad;

}  // namespace graphkit
