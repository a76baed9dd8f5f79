#include <algorithm>
#include <cstdint>

#include "runtime/array.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace graphkit {
namespace {

#ifdef __linux__

constexpr std::size_t kPage = 4096;
// Less memory than this has too few page faults to save.
constexpr std::size_t kSmallest = 8 * kPage;
// numpy requests huge pages for memory of at least this size. They make later runs faster.
constexpr std::size_t kLarge = std::size_t{1} << 22;
// Older headers lack this constant of Linux 5.14. Older systems return an error, which is ignored.
constexpr int kPopulateWrite = 23;

// Has the system provide the pages of the first `used` of `bytes` bytes of memory, in one call instead of one page
// fault each. Use it for memory that will be written completely. It changes no content, and does nothing on systems
// without such a call, or if the memory is so large that numpy has requested huge pages for it.
void provide_pages(void* memory, std::size_t bytes, std::size_t used) {
    const auto start = reinterpret_cast<std::uintptr_t>(memory);
    const std::uintptr_t first = (start + kPage - 1) / kPage * kPage;
    const std::uintptr_t end = (start + std::min(used, bytes)) / kPage * kPage;
    if (bytes >= kLarge || end < first + kSmallest) {
        return;
    }
    void* const pages = reinterpret_cast<void*>(first);
    const std::size_t size = end - first;
    static_cast<void>(madvise(pages, size, kPopulateWrite));
}

#else

void provide_pages(void*, std::size_t, std::size_t) {}

#endif

}  // namespace

GRAPHKIT_BINDINGS(memory_pages) {
    m.def(
        "provide_pages",
        [](nb::handle array, std::size_t used) {
            const Array memory = open_array(array, "array", true);
            provide_pages(memory.data, memory.bytes, used);
        },
        "array"_a, "used"_a,
        "Provide the pages of the first `used` bytes of an array that will be written completely, in one call.");
}

}  // namespace graphkit
