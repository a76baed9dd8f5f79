// The headers that most source files with vector code include, parsed once for each instruction set. Source files do
// not include this file and do not rely on it: CMake includes it before each of them.
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
