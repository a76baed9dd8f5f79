#ifdef GRAPHKIT_X86_KERNELS
#include "simd/windows.h"

namespace graphkit {

constinit const WindowTable kWindowAvx512 = {add_products};

}  // namespace graphkit
#endif
