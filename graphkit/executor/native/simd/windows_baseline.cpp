#include "simd/windows.h"

namespace graphkit {

constinit const WindowTable kWindowBaseline = {add_products};

}  // namespace graphkit
