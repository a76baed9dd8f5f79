// Facts about the processor and the compiler.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace graphkit {

// Instruction sets that both the processor and the operating system offer, by their /proc/cpuinfo names.
// Empty on processors other than x86.
std::vector<std::string> cpu_features();

// Whether bfloat16 matrix products are fast: oneDNN is built in, and the processor has instructions for them.
bool has_bfloat16();
// Bytes of the last-level cache; 32 MiB if the system does not report them.
std::int64_t last_level_cache();

// Name and version of the compiler that built the extension.
std::string compiler();

}  // namespace graphkit
