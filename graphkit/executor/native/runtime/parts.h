// Runs a program on the parts of a batch: one part of each array per run, several runs in parallel.
#pragma once

#include <functional>
#include <vector>

#include "runtime/program.h"

namespace graphkit {

// The external memory of all parts: part i begins i * step bytes behind `data`.
struct PartArray {
    int external;
    std::byte* data;
    std::int64_t step;
};

// Runs the program on `parts` parts, on one thread for each instance. Instances must have arenas. Each thread uses one
// instance, and runs its parts on its own. Throws what Instance::run throws: parts that have begun are finished, the
// others do not start.
void run_parts(const std::vector<Instance*>& instances, const std::vector<PartArray>& arrays, std::int64_t parts,
               const std::function<void()>& poll);

}  // namespace graphkit
