#ifdef GRAPHKIT_X86_KERNELS
#include "simd/select.h"

namespace graphkit {

constinit const SelectTable kSelectAvx512 = make_select_table();

}  // namespace graphkit
#endif
