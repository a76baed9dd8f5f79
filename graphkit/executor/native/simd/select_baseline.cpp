#include "simd/select.h"

namespace graphkit {

constinit const SelectTable kSelectBaseline = make_select_table();

}  // namespace graphkit
