#ifdef GRAPHKIT_X86_KERNELS
#include "simd/attention.h"

namespace graphkit {

constinit const AttentionTable kAttentionAvx512 = make_attention_table();

}  // namespace graphkit
#endif
