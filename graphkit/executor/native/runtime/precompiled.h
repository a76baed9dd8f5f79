// The headers that most source files include, parsed once for all of them. Source files do not include this file and do
// not rely on it: CMake includes it before each of them, and -DGRAPHKIT_PRECOMPILED_HEADERS=OFF builds without it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <type_traits>
#include <unordered_map>

#include "runtime/bindings.h"
