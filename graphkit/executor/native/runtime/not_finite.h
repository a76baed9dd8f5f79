// The error of a value that must be finite and is not.
#pragma once

#include "runtime/kernel.h"

namespace graphkit {

struct NotFinite : NativeError {
    using NativeError::NativeError;
};

}  // namespace graphkit
