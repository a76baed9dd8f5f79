#include "simd/attention.h"

namespace graphkit {

constinit const AttentionTable kAttentionBaseline = make_attention_table();

}  // namespace graphkit
