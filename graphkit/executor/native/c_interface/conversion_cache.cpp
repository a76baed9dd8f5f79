#include "c_interface/conversion_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <system_error>
#include <tuple>

#include "c_interface/blake2b.h"
#include "c_interface/environment.h"
#include "c_interface/mapped_file.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

constexpr std::string_view kSymbol = "-symbol.json";
constexpr std::string_view kSuffix = ".gkp";
// Digits of the two hashes in the name of an entry.
constexpr std::size_t kKeyDigits = 64;
constexpr std::size_t kConverterDigits = 32;

// A hash of texts, each of which is preceded by its length.
class Key {
  public:
    void add(std::string_view text) {
        LongHash hash;
        hash.add(text);
        hash.finish(hash_);
    }
    // Adds the contents of a file, which also go to `see`.
    void add_file(const std::string& path, const std::function<void(std::string_view)>& see = [](std::string_view) {}) {
        LongHash hash;
        read_pieces(path, [&](std::string_view piece) {
            hash.add(piece);
            see(piece);
        });
        hash.finish(hash_);
    }
    std::string hex() { return hash_.hex(); }

  private:
    Blake2b hash_;
};

// Variables that change what `graphkit export` writes, such as GRAPHKIT_SEED.
void add_settings(Key& key) {
    std::set<std::string> settings;
    for (char** each = environment(); each != nullptr && *each != nullptr; ++each) {
        const std::string_view text(*each);
        if (text.starts_with("GRAPHKIT_")) {
            settings.emplace(text);
        }
    }
    for (const std::string& each : settings) {
        key.add(each);
    }
    key.add("end of settings");
}

// Reads the length of a field of a protobuf message. Returns nothing if it is not one.
std::optional<std::uint64_t> read_length(std::string_view& bytes) {
    std::uint64_t length = 0;
    for (unsigned shift = 0; shift < 35 && !bytes.empty(); shift += 7) {
        const auto byte = static_cast<unsigned char>(bytes[0]);
        bytes.remove_prefix(1);
        length |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
        if (byte < 0x80U) {
            return length;
        }
    }
    return std::nullopt;
}

// Finds the locations of external data in the pieces of an ONNX file: the values of entries with the key "location".
// Texts that only look like an entry are found, too.
class Locations {
  public:
    void see(std::string_view piece) {
        const std::string window = rest_ + std::string(piece);
        find(window);
        rest_ = window.substr(window.size() - std::min(window.size(), kLongestEntry));
    }
    const std::set<std::string>& found() const { return found_; }

  private:
    static constexpr std::string_view kKey{"\x0A\x08location", 10};  // field 1, 8 bytes
    static constexpr std::string_view kValue{"\x12", 1};             // field 2
    static constexpr std::size_t kLongestEntry = 4096 + 16;          // no path is longer

    void find(std::string_view bytes) {
        for (std::size_t at = bytes.find(kKey); at != std::string_view::npos; at = bytes.find(kKey, at + 1)) {
            std::string_view rest = bytes.substr(at + kKey.size());
            if (!rest.starts_with(kValue)) {
                continue;
            }
            rest.remove_prefix(kValue.size());
            const auto length = read_length(rest);
            if (length && *length <= rest.size()) {
                found_.emplace(rest.substr(0, *length));
            }
        }
    }

    std::string rest_;  // the end of earlier pieces, where an entry may begin
    std::set<std::string> found_;
};

void add_external_data(Key& key, const std::string& network, const std::set<std::string>& locations) {
    // A location is relative to the folder of the network, or to that of the file behind a symbolic link.
    namespace fs = std::filesystem;
    std::error_code ignored;
    const fs::path path(network);
    const std::set<fs::path> folders{
        fs::canonical(path.has_parent_path() ? path.parent_path() : ".", ignored),
        fs::canonical(path, ignored).parent_path(),
    };
    for (const std::string& location : locations) {
        for (const auto& folder : folders) {
            const std::string data = folder / location;
            struct stat facts{};
            const bool is_file = stat(data.c_str(), &facts) == 0 && S_ISREG(facts.st_mode);
            key.add(location);
            if (is_file) {
                key.add_file(data);
            } else {
                key.add("no file");
            }
        }
    }
}

// Adds size, inode and time of change of a file instead of its contents. Adds nothing if it does not exist.
void add_state(Key& key, const std::string& path) {
    struct stat facts{};
    if (stat(path.c_str(), &facts) != 0) {
        return;
    }
#ifdef __APPLE__
    const timespec changed = facts.st_ctimespec;
#else
    const timespec changed = facts.st_ctim;
#endif
    key.add(std::filesystem::path(path).filename().string());
    for (const auto number : {static_cast<std::int64_t>(facts.st_dev), static_cast<std::int64_t>(facts.st_ino),
                              static_cast<std::int64_t>(facts.st_size), static_cast<std::int64_t>(changed.tv_sec),
                              static_cast<std::int64_t>(changed.tv_nsec)}) {
        key.add(std::to_string(number));
    }
}

// Adds the states of the files of a folder, down to kDeepest folders below it. The cache itself may be one of these.
void add_folder(Key& key, const std::string& folder, const std::string& cache) {
    namespace fs = std::filesystem;
    constexpr int kDeepest = 3;
    std::set<std::string> files;
    std::error_code error;
    fs::recursive_directory_iterator entry(folder, fs::directory_options::skip_permission_denied, error);
    for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
        std::error_code ignored;
        if (entry->is_directory(ignored)) {
            if (entry.depth() >= kDeepest || fs::equivalent(entry->path(), cache, ignored)) {
                entry.disable_recursion_pending();
            }
        } else if (entry->path().extension() != kSuffix) {
            files.insert(entry->path().string());
        }
    }
    for (const std::string& file : files) {
        add_state(key, file);
    }
}

// Adds the states of files and folders that an argument of the converter names: FILE, FOLDER:WEIGHT, --OPTION=FILE or
// INPUT=FILE.
void add_named_files(Key& key, const std::string& argument, const std::string& cache) {
    const std::string value = argument.substr(argument.find('=') + 1);
    for (const std::string& text : std::set<std::string>{argument, value, value.substr(0, value.rfind(':'))}) {
        std::error_code ignored;
        const auto status = std::filesystem::status(text, ignored);
        if (std::filesystem::is_directory(status)) {
            add_folder(key, text, cache);
        } else if (std::filesystem::is_regular_file(status)) {
            add_state(key, text);
        }
    }
}

// The parameters of an MXNet symbol are in a file beside it, NAME-EPOCH.params or NAME.params. All of them count, since
// a new file may replace the one that was read. Their contents are not read: a change leaves another time.
void add_parameters(Key& key, const std::string& symbol) {
    const std::filesystem::path path(symbol);
    const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
    std::string prefix = path.filename();
    prefix.resize(prefix.size() - kSymbol.size());
    std::set<std::string> names;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
        std::string name = entry.path().filename();
        if (name.starts_with(prefix) && name.ends_with(".params")) {
            names.insert(std::move(name));
        }
    }
    for (const std::string& name : names) {
        add_state(key, folder + "/" + name);
    }
}

std::string key_of(const std::string& network, const std::vector<std::string>& command, const std::string& cache) {
    Key key;
    key.add(GRAPHKIT_VERSION);
    key.add(std::to_string(kProgramFormat));
    for (const std::string& fact : program_target()) {
        key.add(fact);
    }
    key.add("end of processor");
    key.add(std::to_string(default_threads()));
    for (const std::string& argument : command) {
        key.add(argument);
        if (&argument != &command[0]) {  // the converter need not exist
            add_named_files(key, argument, cache);
        }
    }
    key.add("end of command");
    add_settings(key);
    Locations locations;
    const bool is_onnx = network.ends_with(".onnx");
    key.add_file(network, [&](std::string_view piece) {
        if (is_onnx) {
            locations.see(piece);
        }
    });
    // A graph in graphkit's JSON contains the hash of its weights.
    if (network.ends_with(kSymbol)) {
        key.add("MXNet");
        add_parameters(key, network);
    } else if (is_onnx) {
        key.add("ONNX");
        add_external_data(key, network, locations.found());
    }
    return key.hex();
}

[[noreturn]] void fail(const std::string& folder, const std::string& why) {
    throw FileError(folder + " (gk_options.cache_folder): " + why);
}

void check_folder(const std::string& folder) {
    if (mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
        fail(folder, std::string("the folder cannot be made: ") + std::strerror(errno));
    }
    struct stat facts{};
    if (stat(folder.c_str(), &facts) != 0) {
        fail(folder, std::strerror(errno));
    }
    if (!S_ISDIR(facts.st_mode)) {
        fail(folder, "not a folder");
    }
    if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0 || (facts.st_uid != geteuid() && facts.st_uid != 0)) {
        fail(folder,
             "other users may write into it, so that programs in it could be theirs. Name a folder of your own, and "
             "allow only yourself to write (chmod go-w)");
    }
}

// Returns the place of a network in the cache. A converter is a script in most cases, whose contents decide what it
// writes. Its hash is not part of the key, so that entries can be found without a converter.
std::string place_of(const std::string& folder, const std::string& key, const std::string& converter) {
    Key contents;
    if (access(converter.c_str(), R_OK) == 0) {
        contents.add_file(converter);
    } else {  // a binary program may allow only its execution
        add_state(contents, converter);
    }
    const std::string name = key + "-" + contents.hex().substr(0, kConverterDigits) + std::string(kSuffix);
    return std::filesystem::path(folder) / name;  // the path that entries_of has
}

// Whether a file has the name of an entry: files of other programs must not be removed.
bool is_entry_name(std::string_view name) {
    const auto end_of_digits = [&](std::size_t start) { return name.find_first_not_of("0123456789abcdef", start); };
    constexpr std::size_t kLength = kKeyDigits + 1 + kConverterDigits;
    return name.size() == kLength + kSuffix.size() && name.ends_with(kSuffix) && name[kKeyDigits] == '-' &&
           end_of_digits(0) == kKeyDigits && end_of_digits(kKeyDigits + 1) == kLength;
}

struct Entry {
    std::filesystem::file_time_type used;
    std::string path;
    std::int64_t bytes;
};

// Returns the programs in a cache whose names begin with a key, or with any key. Other files are not of the cache.
std::vector<Entry> entries_of(const std::string& folder, const std::string& key = "") {
    std::vector<Entry> found;
    std::error_code error;
    std::filesystem::directory_iterator entry(folder, error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
        const std::string name = entry->path().filename();
        struct stat facts{};
        if (is_entry_name(name) && name.starts_with(key) && lstat(entry->path().c_str(), &facts) == 0 &&
            S_ISREG(facts.st_mode)) {
            std::error_code ignored;
            found.push_back({entry->last_write_time(ignored), entry->path(), facts.st_size});
        }
    }
    std::sort(found.begin(), found.end(), [](const Entry& one, const Entry& other) {
        return std::tie(one.used, one.path) < std::tie(other.used, other.path);
    });
    return found;
}

// Returns the entry of a key that was used last; "" if there is none.
std::string latest_entry(const std::string& folder, const std::string& key) {
    const std::vector<Entry> found = entries_of(folder, key);
    return found.empty() ? "" : found.back().path;
}

// Removes entries other than `kept`. Another process may remove the same ones at the same time: then each counts as
// removed for both. A session that has mapped a removed program keeps it.
void remove_oldest(const std::string& folder, const std::string& kept, std::int64_t most_bytes) {
    const std::vector<Entry> entries = entries_of(folder);
    std::int64_t total = 0;
    for (const Entry& entry : entries) {
        total += entry.bytes;
    }
    for (const Entry& entry : entries) {
        if (total <= most_bytes) {
            return;
        }
        if (entry.path != kept && (unlink(entry.path.c_str()) == 0 || errno == ENOENT)) {
            total -= entry.bytes;
        }
    }
}

}  // namespace

ConversionCache::ConversionCache(const std::string& network, const ConverterOptions& options,
                                 const std::string& converter)
    : network_(network),
      command_{options.program},
      folder_(options.cache),
      converter_(converter),
      most_bytes_(options.cache_bytes) {
    command_.insert(command_.end(), options.arguments.begin(), options.arguments.end());
    check_folder(folder_);
    key_ = key_of(network, command_, folder_);
    place_ = converter.empty() ? latest_entry(folder_, key_) : place_of(folder_, key_, converter);
    std::error_code ignored;
    if (std::filesystem::is_directory(place_, ignored)) {
        fail(folder_, place_ + " is a folder, so that the converted program cannot be stored. Remove it");
    }
}

std::unique_ptr<SavedFile> ConversionCache::find(int threads) const {
    if (place_.empty()) {
        return nullptr;
    }
    try {
        auto found = std::make_unique<SavedFile>(place_, threads);
        // The time of an entry is that of its last use. A user who may not set it can still read the entry.
        utimensat(AT_FDCWD, place_.c_str(), nullptr, 0);
        return found;
    } catch (const FileError&) {
    } catch (const BadFile&) {
    } catch (const OtherVersion&) {
    } catch (const OtherProcessor&) {
    }
    return nullptr;
}

void ConversionCache::keep(const std::string& file) const {
    struct stat facts{};
    if (stat(file.c_str(), &facts) != 0 || (most_bytes_ >= 0 && facts.st_size > most_bytes_)) {
        return;
    }
    if (key_of(network_, command_, folder_) != key_ || place_of(folder_, key_, converter_) != place_) {
        return;  // it may be the program of another version of the network
    }
    // The time of an entry is that of its last use. A converter may copy a file together with its time.
    utimensat(AT_FDCWD, file.c_str(), nullptr, 0);
    if (std::rename(file.c_str(), place_.c_str()) != 0) {
        const int error = errno;
        throw FileError(place_ + ": the converted program cannot be stored: " + std::strerror(error));
    }
    if (most_bytes_ >= 0) {
        remove_oldest(folder_, place_, most_bytes_);
    }
}

}  // namespace graphkit
