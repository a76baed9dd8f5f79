#include "c_interface/private_folder.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>

#include "c_interface/environment.h"
#include "c_interface/mapped_file.h"

namespace graphkit {

PrivateFolder::PrivateFolder(const std::string& parent, const std::string& setting)
    : path_(parent + "/.graphkit-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) {  // its mode is 0700
        const int error = errno;
        throw FileError(parent + ": a folder for the converted program cannot be made: " + std::strerror(error) +
                        ". Set " + setting + " to another folder");
    }
}

PrivateFolder::~PrivateFolder() {
    // A process that was killed may still make a file while the folder is removed.
    constexpr int kTries = 50;
    std::error_code error;
    for (int i = 0; i < kTries; ++i) {
        std::filesystem::remove_all(path_, error);
        if (!error) {
            return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
}

std::string temporary_folder() {
    const std::string chosen = environment_text("TMPDIR");
    return chosen.empty() ? "/tmp" : chosen;
}

}  // namespace graphkit
