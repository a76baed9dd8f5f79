// Checks many indices at once.
#include "primitives/index_signs.h"

namespace graphkit {
namespace {

// Uses only sums and their signs, because not every instruction set can compare vectors of 64-bit elements.
template <typename Index>
IndexSigns signs_of(const Index* indices, std::int64_t length, std::int64_t size) {
    const auto wide = static_cast<std::uint64_t>(size);
    const std::uint64_t last = 2 * wide - 1;
    std::uint64_t beyond = 0;
    std::uint64_t signs = 0;
    for (std::int64_t i = 0; i < length; ++i) {
        const auto index = static_cast<std::uint64_t>(static_cast<std::int64_t>(indices[i]));
        const std::uint64_t shifted = index + wide;
        beyond |= shifted | (last - shifted);
        signs |= index;
    }
    return {static_cast<std::int64_t>(beyond), static_cast<std::int64_t>(signs)};
}

}  // namespace

GRAPHKIT_ISA_DEFINE(IndexTable, index_table) = {signs_of<std::int32_t>, signs_of<std::int64_t>};

}  // namespace graphkit
