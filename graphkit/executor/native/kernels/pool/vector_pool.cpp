#include "kernels/pool/vector_pool.h"

#include "kernels/pool/lanes.h"
#include "kernels/pool/padded.h"

namespace graphkit {
namespace {

template <typename First, typename Second>
std::shared_ptr<const VectorPool> faster(const std::shared_ptr<First>& first, const std::shared_ptr<Second>& second) {
    if (first == nullptr || (second != nullptr && second->nanoseconds() < first->nanoseconds())) {
        return second;
    }
    return first;
}

}  // namespace

std::shared_ptr<const VectorPool> VectorPool::maximum(const PoolGeometry& geometry) {
    return faster(PaddedPool::maximum(geometry), LanesPool::maximum(geometry));
}

std::shared_ptr<const VectorPool> VectorPool::mean(const PoolGeometry& geometry, bool include_pad) {
    return faster(PaddedPool::mean(geometry, include_pad), LanesPool::mean(geometry, include_pad));
}

}  // namespace graphkit
