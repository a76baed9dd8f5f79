#ifdef GRAPHKIT_X86_KERNELS
#include "simd/direct.h"
#include "simd/winograd.h"

namespace graphkit {

constinit const TiledTable kDirectAvx512 = kDirect;
constinit const TiledTable kWinogradAvx512 = kWinograd;

}  // namespace graphkit
#endif
