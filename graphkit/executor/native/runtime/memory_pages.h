// Pages of new memory, provided before the memory is written.
#pragma once

#include <cstddef>

namespace graphkit {

// Has the system provide the pages of the first `used` of `bytes` bytes of memory, in one call instead of one page
// fault each. Use it for memory that will be written completely. It changes no content, and does nothing on systems
// without such a call. The pages are small: huge ones can take a hundred times longer, because the system first moves
// other pages, or because the host of a virtual machine does not yet back them.
void provide_pages(void* memory, std::size_t bytes, std::size_t used);

}  // namespace graphkit
