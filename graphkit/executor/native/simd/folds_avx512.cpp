#ifdef GRAPHKIT_X86_KERNELS
#include "simd/folds.h"

namespace graphkit {

constinit const FoldTable kFoldsAvx512 = make_fold_table();

}  // namespace graphkit
#endif
