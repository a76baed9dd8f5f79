#include "simd/factors.h"

#include "simd/factors_tables.h"

namespace graphkit {

constinit const FactorTable kFactorsBaseline = kFactors;

}  // namespace graphkit
