// Pages of new memory, provided before the memory is written.
#pragma once

#include <cstddef>

namespace graphkit {

// Has the system provide the pages of the first `used` of `bytes` bytes of memory, in one call instead of one page
// fault each. Use it for memory that will be written completely. It changes no content, and does nothing on systems
// without such a call, or if the memory is so large that numpy has requested huge pages for it.
void provide_pages(void* memory, std::size_t bytes, std::size_t used);

}  // namespace graphkit
