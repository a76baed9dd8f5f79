#include "simd/direct.h"
#include "simd/winograd.h"

namespace graphkit {

constinit const TiledTable kDirectBaseline = kDirect;
constinit const TiledTable kWinogradBaseline = kWinograd;

}  // namespace graphkit
