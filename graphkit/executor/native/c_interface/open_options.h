// Reads gk_options.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "../../include/graphkit.h"
#include "c_interface/converter.h"

namespace graphkit {

// Most bytes of a cache folder if gk_options.cache_bytes is 0.
constexpr std::int64_t kDefaultCacheBytes = std::int64_t{8} << 30;

// Returns the options of a caller whose gk_options may be shorter: it was compiled with an older graphkit.h.
inline std::optional<gk_options> options_of(const gk_options* given, std::size_t size) {
    // The sizes in all headers of this version.
    if (size != offsetof(gk_options, converter) && size != offsetof(gk_options, cache_bytes) &&
        size != sizeof(gk_options)) {
        return std::nullopt;
    }
    gk_options options{};
    if (given != nullptr) {
        std::memcpy(&options, given, size);
    }
    return options;
}

inline ConverterOptions converter_options(const gk_options& options) {
    ConverterOptions found;
    found.program = options.converter == nullptr ? "" : options.converter;
    found.is_forbidden = options.converter != nullptr && found.program.empty();
    for (const char* const* each = options.converter_arguments; each != nullptr && *each != nullptr; ++each) {
        found.arguments.emplace_back(*each);
    }
    found.timeout = options.convert_timeout;
    found.cache = options.cache_folder == nullptr ? "" : options.cache_folder;
    found.cache_bytes = options.cache_bytes == 0 ? kDefaultCacheBytes : options.cache_bytes;
    return found;
}

}  // namespace graphkit
