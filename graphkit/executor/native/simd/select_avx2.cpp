#ifdef GRAPHKIT_X86_KERNELS
#include "simd/select.h"

namespace graphkit {

constinit const SelectTable kSelectAvx2 = make_select_table();

}  // namespace graphkit
#endif
