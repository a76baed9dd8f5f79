// Networks in other formats than .gkp: a separate process, the converter, writes them as programs. It is the command
// `graphkit export`, which needs Python.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "c_interface/saved_program.h"
#include "runtime/kernel.h"

namespace graphkit {

// A network could not be converted.
struct ConversionError : NativeError {
    enum class Kind {
        kConverter,    // there is no converter, or it ended without a result
        kArguments,    // it does not accept its arguments
        kUnsupported,  // the network cannot be saved as a program
        kBadNetwork,   // the file is damaged, or not a network
        kTimeOut,
    };
    ConversionError(Kind error_kind, const std::string& text) : NativeError(text), kind(error_kind) {}
    Kind kind;
};

// How networks are converted. Empty texts choose the defaults that graphkit.h describes.
struct ConverterOptions {
    std::string program;
    bool is_forbidden = false;
    std::vector<std::string> arguments;
    double timeout = 0;  // 0: any time
    std::string cache;
    std::int64_t cache_bytes = -1;  // -1: any number
};

// Whether a file is converted, if it is not a saved program.
bool has_network_name(const std::string& path);

// Opens a saved program, or a network, which is converted. `threads` is that of SavedFile. Throws ConversionError, and
// what SavedFile throws.
std::unique_ptr<SavedFile> open_network(const std::string& path, int threads, const ConverterOptions& options);

}  // namespace graphkit
