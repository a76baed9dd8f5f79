// Steps of a saved program whose kernels are made in a run, from the shapes of buffers.
#pragma once

#include <optional>
#include <vector>

#include "c_interface/step_check.h"
#include "runtime/program.h"

namespace graphkit {

// Returns a function that makes the kernel of a step for the shapes of its operands in buffers. `StepCheck::sized` must
// have accepted the step. results: the buffer of each result, or no value. The function throws NativeError if the
// kernel would leave the memory of the operands.
Dynamic::Make sized_kernel_maker(const SavedStep& step, std::vector<std::optional<SavedBuffer>> results);

}  // namespace graphkit
