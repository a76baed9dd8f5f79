// The tables that simd/philox_<isa>.cpp define.
#pragma once

#include "random.h"

namespace graphkit {

extern const PhiloxTable kPhiloxBaseline;
extern const PhiloxTable kPhiloxAvx2;
extern const PhiloxTable kPhiloxAvx512;

}  // namespace graphkit
