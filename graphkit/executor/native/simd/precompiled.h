// The headers that most sources with vector code include, parsed once for each instruction set. Sources do not include
// this file and do not rely on it: CMake puts it in front of each one.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/isa.h"
#include "runtime/kernel.h"
#include "simd/vector.h"
