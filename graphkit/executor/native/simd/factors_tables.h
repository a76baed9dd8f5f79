// The tables that simd/factors_<isa>.cpp define.
#pragma once

#include "linear_systems.h"

namespace graphkit {

extern const FactorTable kFactorsBaseline;
extern const FactorTable kFactorsAvx2;
extern const FactorTable kFactorsAvx512;

}  // namespace graphkit
