// The headers that most sources include, parsed once for all of them. Sources do not include this file and do not rely
// on it: CMake puts it in front of each one, and -DGRAPHKIT_PRECOMPILED_HEADERS=OFF builds without it.
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
