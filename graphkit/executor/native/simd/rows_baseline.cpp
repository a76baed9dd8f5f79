#include "simd/rows.h"

namespace graphkit {

constinit const RowTable kRowsBaseline = make_row_table();

}  // namespace graphkit
