// A program, and all that its steps use.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "runtime/bindings.h"
#include "runtime/program.h"
#include "runtime/sized_kernels.h"

namespace graphkit {

struct BoundProgram : Program {
    using Program::Program;
    BoundProgram(const BoundProgram&) = delete;

    std::vector<nb::object> kept;
    std::vector<std::shared_ptr<const SizedKernel>> sized_kernels;
    // External memory with elements that are computed from sizes. They occupy the first bytes of the vector.
    std::vector<std::pair<int, std::vector<std::int64_t>>> shape_values;
};

// Moves an instance of the program to an arena, an array. Raises ValueError if it is too small.
void move_to(nb::handle arena, const BoundProgram& program, Instance& instance);

// Returns a time in nanoseconds, for Instance::limit. Times that do not fit are the latest one.
std::int64_t nanoseconds(double seconds);

// Handles Python's signals in the main thread. Throws the exception of a handler. Runs call it between steps.
void check_signals();

}  // namespace graphkit
