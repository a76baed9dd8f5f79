// What the processor and the compiler are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace graphkit {

// Instruction sets that both the processor and the operating system offer, by their /proc/cpuinfo names.
// Empty on processors other than x86.
std::vector<std::string> cpu_features();

// Whether matrices of bfloat16 are multiplied: oneDNN is built in, and the processor has what it needs.
bool has_bfloat16();
// Bytes of the last-level cache; 32 MiB where the system does not say.
std::int64_t last_level_cache();

// Name and version of the compiler that built the extension.
std::string compiler();

}  // namespace graphkit
