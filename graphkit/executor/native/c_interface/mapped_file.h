// Files that are only read.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/kernel.h"

namespace graphkit {

// A file could not be read.
struct FileError : NativeError {
    using NativeError::NativeError;
};

// Passes the contents of a file to `take`, in pieces. If another process shortens the file meanwhile, it has fewer
// pieces; access to a mapped file would end this process. Throws FileError.
void read_pieces(const std::string& path, const std::function<void(std::string_view)>& take);

// Returns the first bytes of a file, at most `count`. Throws FileError.
std::string first_bytes(const std::string& path, std::size_t count);

// A file in memory, which must not be shortened.
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
