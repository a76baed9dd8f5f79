// Reads gk_options.
#pragma once

#include <cstddef>
#include <cstring>
#include <optional>

#include "../../include/graphkit.h"
#include "c_interface/converter.h"

namespace graphkit {

// Returns the options of a caller whose gk_options may be shorter: it was compiled with an older graphkit.h.
inline std::optional<gk_options> options_of(const gk_options* given, std::size_t size) {
    constexpr std::size_t kFirst = offsetof(gk_options, converter);  // in the first graphkit.h of this version
    if (size != kFirst && size != sizeof(gk_options)) {
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
    return found;
}

}  // namespace graphkit
