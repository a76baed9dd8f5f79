// A file in memory, which can only be read.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "runtime/kernel.h"

namespace graphkit {

// A file could not be read.
struct FileError : NativeError {
    using NativeError::NativeError;
};

class MappedFile {
  public:
    // Throws FileError.
    explicit MappedFile(const std::string& path);
    // Copies bytes. Throws std::bad_alloc.
    explicit MappedFile(std::string_view bytes);
    ~MappedFile();
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    // Begins at a multiple of a page.
    std::string_view bytes() const { return {static_cast<const char*>(start_), size_}; }

  private:
    void* start_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace graphkit
