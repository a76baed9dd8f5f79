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

// Opens a regular file.
int open_regular(const std::string& path) {
    const int opened = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // do not wait for a pipe
    if (opened < 0) {
        fail(path, errno);
    }
    struct stat facts{};
    const int error = fstat(opened, &facts) != 0 ? errno : 0;
    if (error != 0 || !S_ISREG(facts.st_mode)) {
        close(opened);
        if (error != 0) {
            fail(path, error);
        }
        throw FileError(path + ": not a regular file");
    }
    return opened;
}

// Reads until the buffer is full or the file ends.
std::size_t read_full(const Descriptor& file, const std::string& path, char* to, std::size_t count) {
    std::size_t done = 0;
    while (done < count) {
        const ssize_t more = read(file.number, to + done, count - done);
        if (more < 0 && errno != EINTR) {
            fail(path, errno);
        }
        if (more == 0) {
            break;
        }
        done += more > 0 ? static_cast<std::size_t>(more) : 0;
    }
    return done;
}

}  // namespace

void read_pieces(const std::string& path, const std::function<void(std::string_view)>& take) {
    constexpr std::size_t kPiece = std::size_t{1} << 18;
    const Descriptor file(open_regular(path));
    std::string piece(kPiece, '\0');
    while (const std::size_t count = read_full(file, path, piece.data(), kPiece)) {
        take(std::string_view(piece).substr(0, count));
    }
}

std::string first_bytes(const std::string& path, std::size_t count) {
    const Descriptor file(open_regular(path));
    std::string bytes(count, '\0');
    bytes.resize(read_full(file, path, bytes.data(), count));
    return bytes;
}

MappedFile::MappedFile(const std::string& path) {
    const Descriptor file(open_regular(path));
    struct stat facts{};
    if (fstat(file.number, &facts) != 0) {
        fail(path, errno);
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
