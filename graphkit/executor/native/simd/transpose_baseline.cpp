#include "simd/transpose.h"

#include "simd/transpose_tables.h"

namespace graphkit {

constinit const TransposeTable kTransposeBaseline = kTransposes;

}  // namespace graphkit
