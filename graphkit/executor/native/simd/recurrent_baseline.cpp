#include "simd/recurrent.h"

namespace graphkit {

constinit const RecurrentTable recurrent_baseline = kRecurrent;

}  // namespace graphkit
