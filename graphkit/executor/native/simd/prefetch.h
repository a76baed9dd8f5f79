// Prefetches the pages that a loop over memory reaches next. For *.isa.cpp only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace graphkit {
namespace {

// A loop over memory calls prefetch_page each time it has read this number of bytes of each array.
constexpr std::int64_t kPrefetchStep = 2048;

// The number of elements in these bytes.
template <typename T>
constexpr std::int64_t kPiece = kPrefetchStep / static_cast<std::int64_t>(sizeof(T));

// Prefetches the first lines of the page that begins at `at` or behind it: the processor's own prefetchers stop at the
// end of a page.
inline void prefetch_page(const void* at) {
    constexpr std::uintptr_t kPage = 4096;
    constexpr std::ptrdiff_t kLine = 64;
    const auto page = (reinterpret_cast<std::uintptr_t>(at) + kPage - 1) & ~(kPage - 1);
    const auto* const lines = reinterpret_cast<const std::byte*>(page);
    __builtin_prefetch(lines);
    __builtin_prefetch(lines + kLine);
}

}  // namespace
}  // namespace graphkit
