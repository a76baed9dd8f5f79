#ifdef GRAPHKIT_X86_KERNELS
#include "simd/direct.h"
#include "simd/winograd.h"

namespace graphkit {

constinit const TiledTable kDirectAvx2 = kDirect;
constinit const TiledTable kWinogradAvx2 = kWinograd;

}  // namespace graphkit
#endif
