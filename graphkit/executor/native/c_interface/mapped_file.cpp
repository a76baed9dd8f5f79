#include "c_interface/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

namespace graphkit {
namespace {

[[noreturn]] void fail(const std::string& path, int error) {
    throw FileError(path + ": " + std::strerror(error));
}

// An open file, which is closed at the end.
struct Descriptor {
    int number;

    explicit Descriptor(int opened) : number(opened) {}
    ~Descriptor() { close(number); }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) {
    const int opened = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // do not wait for a pipe
    if (opened < 0) {
        fail(path, errno);
    }
    const Descriptor file(opened);
    struct stat facts{};
    if (fstat(file.number, &facts) != 0) {
        fail(path, errno);
    }
    if (!S_ISREG(facts.st_mode)) {
        throw FileError(path + ": not a regular file");
    }
    size_ = static_cast<std::size_t>(facts.st_size);
    if (size_ == 0) {
        return;
    }
    void* const mapped = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.number, 0);
    if (mapped == MAP_FAILED) {
        fail(path, errno);
    }
    start_ = mapped;
}

MappedFile::MappedFile(std::string_view bytes) : size_(bytes.size()) {
    if (size_ == 0) {
        return;
    }
    void* const mapped = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
        throw std::bad_alloc();
    }
    start_ = mapped;
    std::memcpy(mapped, bytes.data(), size_);
    mprotect(mapped, size_, PROT_READ);
}

MappedFile::~MappedFile() {
    if (start_ != nullptr) {
        munmap(start_, size_);
    }
}

}  // namespace graphkit
