// The tables that simd/transpose_<isa>.cpp define.
#pragma once

#include "strided_copy.h"

namespace graphkit {

extern const TransposeTable kTransposeBaseline;
extern const TransposeTable kTransposeAvx2;
extern const TransposeTable kTransposeAvx512;

}  // namespace graphkit
