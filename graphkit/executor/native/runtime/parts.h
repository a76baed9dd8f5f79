// Parts of a batch: the same program on one piece of each array after the other, several at the same time.
#pragma once

#include <functional>
#include <vector>

#include "runtime/program.h"

namespace graphkit {

// External memory of every part: that of part i lies i * step bytes behind `data`.
struct PartArray {
    int external;
    std::byte* data;
    std::int64_t step;
};

// Runs so many parts on as many threads as there are instances, which have arenas; each thread takes one instance, and
// works alone on its parts. Throws what Instance::run throws: parts that others have begun are ended, the rest is left.
void run_parts(const std::vector<Instance*>& instances, const std::vector<PartArray>& arrays, std::int64_t parts,
               const std::function<void()>& poll);

}  // namespace graphkit
