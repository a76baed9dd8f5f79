// A value that must be finite is infinite or NaN.
#pragma once

#include "runtime/kernel.h"

namespace graphkit {

struct NotFinite : NativeError {
    using NativeError::NativeError;
};

}  // namespace graphkit
