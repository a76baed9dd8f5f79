#include "simd/folds.h"

namespace graphkit {

constinit const FoldTable kFoldsBaseline = make_fold_table();

}  // namespace graphkit
