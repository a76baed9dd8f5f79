#ifdef GRAPHKIT_X86_KERNELS
#include "simd/rows.h"

namespace graphkit {

constinit const RowTable kRowsAvx2 = make_row_table();

}  // namespace graphkit
#endif
