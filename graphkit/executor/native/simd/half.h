// float16 and bfloat16 as they are stored in memory. Arithmetic is done in float.
#pragma once

#include <cstdint>

namespace graphkit {

struct Float16 {
    std::uint16_t bits;
};

struct BFloat16 {
    std::uint16_t bits;
};

}  // namespace graphkit
