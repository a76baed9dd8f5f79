#ifdef GRAPHKIT_X86_KERNELS
#include "simd/windows.h"

namespace graphkit {

constinit const WindowTable kWindowAvx2 = {add_products};

}  // namespace graphkit
#endif
