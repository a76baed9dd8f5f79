#include "simd/philox.h"

#include "simd/philox_tables.h"

namespace graphkit {

constinit const PhiloxTable kPhiloxBaseline = kDraws;

}  // namespace graphkit
