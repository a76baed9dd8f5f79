// Bytes that a kernel is made from, such as the elements of a table. In Python they are `bytes`.
#pragma once

#include <string>

namespace graphkit {

struct RawBytes {
    std::string data;
};

}  // namespace graphkit
