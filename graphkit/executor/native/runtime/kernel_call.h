// A kernel together with the memory that it is to run on.
#pragma once

#include <vector>

#include "runtime/bindings.h"

namespace graphkit {

struct KernelCall {
    const Kernel* kernel;
    std::vector<const void*> inputs;
    std::vector<void*> outputs;

    // Needs no GIL; takes working memory of its own. Throws NativeError for a kernel that wrote beyond it, into the
    // line behind it or, `guarded`, the megabyte.
    void run(bool guarded = false) const;
};

// Finds the memory of numpy arrays (None: an operand that is absent). The caller keeps kernel and arrays alive. Raises
// TypeError or ValueError for arrays that do not fit the kernel.
KernelCall open_call(const Kernel& kernel, nb::handle inputs, nb::handle outputs);

}  // namespace graphkit
