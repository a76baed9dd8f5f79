// A kernel together with the memory of one call.
#pragma once

#include <vector>

#include "runtime/bindings.h"

namespace graphkit {

struct KernelCall {
    const Kernel* kernel;
    std::vector<const void*> inputs;
    std::vector<void*> outputs;

    // Runs the kernel, without the GIL, with working memory allocated for this call. Throws NativeError if the kernel
    // wrote behind its working memory: into the next 64 bytes or, if `guarded`, into the next MiB.
    void run(bool guarded = false) const;
};

// Returns a call on the memory of numpy arrays (None: an absent operand). The caller keeps the kernel and the arrays
// alive. Raises TypeError or ValueError for arrays that do not fit the kernel.
KernelCall open_call(const Kernel& kernel, nb::handle inputs, nb::handle outputs);

}  // namespace graphkit
