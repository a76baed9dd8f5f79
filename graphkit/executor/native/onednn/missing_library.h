// oneDNN's library is missing, or it is not that library.
#pragma once

#include "runtime/kernel.h"

namespace graphkit {

struct MissingLibrary : NativeError {
    using NativeError::NativeError;
};

}  // namespace graphkit
