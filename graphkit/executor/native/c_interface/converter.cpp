#include "c_interface/converter.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <optional>
#include <string_view>
#include <system_error>

#include "c_interface/child_process.h"
#include "c_interface/conversion_cache.h"
#include "c_interface/environment.h"
#include "c_interface/mapped_file.h"
#include "c_interface/private_folder.h"

namespace graphkit {
namespace {

using Kind = ConversionError::Kind;

constexpr const char* kVariable = "GRAPHKIT_CONVERTER";
constexpr const char* kCommand = "graphkit";
constexpr std::size_t kFirstBytes = 64;  // enough to tell a saved program

bool is_program(const std::string& path) {
    struct stat facts{};
    return stat(path.c_str(), &facts) == 0 && S_ISREG(facts.st_mode) && access(path.c_str(), X_OK) == 0;
}

// Returns the path of a program in a folder of PATH; "" if there is none. Relative folders of PATH are left out: a
// program there might belong to somebody else.
std::string on_path(const std::string& name) {
    const std::string folders = environment_text("PATH");
    for (std::size_t at = 0; at <= folders.size();) {
        const std::size_t end = std::min(folders.find(':', at), folders.size());
        const std::string path = folders.substr(at, end - at) + "/" + name;
        if (path[0] == '/' && end > at && is_program(path)) {
            return path;
        }
        at = end + 1;
    }
    return "";
}

[[noreturn]] void no_converter(const std::string& path, const std::string& why) {
    throw ConversionError(Kind::kConverter,
                          path + ": only .gkp files open without a converter, and " + why +
                              ". Either write the program where graphkit for Python is installed (graphkit export " +
                              path +
                              " -o NAME.gkp) and open NAME.gkp; or install graphkit for Python, and set "
                              "gk_options.converter or " +
                              kVariable + " to the path of its command graphkit");
}

// The path of the converter, or why there is none.
struct Converter {
    std::string path;
    std::string missing;
};

Converter find_converter(const ConverterOptions& options) {
    if (options.is_forbidden) {
        return {"", "gk_options.converter is \"\", so none may be started"};
    }
    const std::string variable = environment_text(kVariable);
    const std::string name = !options.program.empty() ? options.program : !variable.empty() ? variable : kCommand;
    const bool is_path = name.find('/') != std::string::npos;
    const std::string found = is_path ? (is_program(name) ? name : "") : on_path(name);
    const char* const source = !options.program.empty() ? " (gk_options.converter)"
                               : !variable.empty()      ? " (GRAPHKIT_CONVERTER)"
                                                        : "";
    return {found,
            is_path ? "'" + name + "'" + source + " is not a program" : "PATH has no program '" + name + "'" + source};
}

// Returns the exit code in the JSON that the converter printed: for an application that collects all processes, so
// that the system cannot tell the code.
std::optional<int> printed_code(const std::string& out) {
    constexpr std::string_view kKey = "\"exit_code\": ";
    const std::size_t at = out.rfind(kKey);
    if (at == std::string::npos) {
        return out.find("\"schema\": \"graphkit.export\"") == std::string::npos ? std::nullopt : std::optional<int>(0);
    }
    int code = 0;
    const char* const start = out.data() + at + kKey.size();
    const bool is_number = std::from_chars(start, out.data() + out.size(), code).ec == std::errc();
    return is_number ? std::optional<int>(code) : std::nullopt;
}

// Returns the last lines that the converter printed, without bytes that a terminal would take for commands.
std::string shown(const std::string& text) {
    std::string lines = text;
    if (text.size() >= kMostOutput) {  // the first line may lack its beginning
        const std::size_t end = text.find('\n');
        const bool has_more = text.find_first_not_of("\n ", end) != std::string::npos;
        lines = has_more ? "...\n" + text.substr(end + 1) : "..." + text;
    }
    while (!lines.empty() && (lines.back() == '\n' || lines.back() == ' ')) {
        lines.pop_back();
    }
    for (char& each : lines) {
        if (static_cast<unsigned char>(each) < ' ' && each != '\n' && each != '\t') {
            each = '?';
        }
    }
    return lines.empty() ? "it printed no error" : lines;
}

// The exit codes of graphkit's commands: graphkit/errors.py.
Kind kind_of(int code) {
    switch (code) {
        case 2:
            return Kind::kArguments;
        case 3:
            return Kind::kUnsupported;
        case 4:
            return Kind::kBadNetwork;
        default:
            return Kind::kConverter;
    }
}

std::string seconds_text(double seconds) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%g s", seconds);
    return text.data();
}

// Throws ConversionError if the converter failed.
void check_end(const std::string& path, const std::string& program, const ChildEnd& end, double timeout) {
    const std::string subject = path + ": the converter '" + program + "' ";
    switch (end.kind) {
        case ChildEnd::Kind::kTimeOut:
            throw ConversionError(Kind::kTimeOut, subject + "did not finish within " + seconds_text(timeout) +
                                                      " (gk_options.convert_timeout): " + shown(end.err));
        case ChildEnd::Kind::kSignalled:
            throw ConversionError(Kind::kConverter, subject + "was ended by signal " + std::to_string(end.number) +
                                                        ": " + shown(end.err));
        default:
            break;
    }
    const auto code = end.kind == ChildEnd::Kind::kExited ? end.number : printed_code(end.out);
    if (!code) {
        throw ConversionError(Kind::kConverter,
                              subject + "ended, but the application collected its exit code: " + shown(end.err));
    }
    if (*code != 0) {
        throw ConversionError(kind_of(*code),
                              subject + "failed with exit code " + std::to_string(*code) + ": " + shown(end.err));
    }
}

// Lets the converter write a network to `output`.
void convert(const std::string& path, const std::string& program, const std::string& output,
             const ConverterOptions& options) {
    // A name that begins with "-" would be an option.
    const auto as_argument = [](const std::string& name) { return name[0] == '-' ? "./" + name : name; };
    std::vector<std::string> command{program,  "export", as_argument(path),  "--no-verify",
                                     "--json", "-o",     as_argument(output)};
    command.insert(command.end(), options.arguments.begin(), options.arguments.end());
    try {
        check_end(path, program, run_child(command, options.timeout), options.timeout);
    } catch (const ChildError& error) {
        throw ConversionError(Kind::kConverter, path + ": the converter: " + error.what());
    }
    // chmod would change the file behind a symbolic link.
    struct stat facts{};
    const bool is_file = lstat(output.c_str(), &facts) == 0 && S_ISREG(facts.st_mode);
    if (!is_file || chmod(output.c_str(), S_IRUSR | S_IWUSR) != 0) {
        throw ConversionError(Kind::kConverter, path + ": the converter '" + program + "' wrote no program");
    }
}

// Opens what the converter wrote. Errors name the network.
std::unique_ptr<SavedFile> open_converted(const std::string& path, const std::string& program,
                                          const std::string& output, int threads) {
    const std::string subject = path + ": the converter '" + program + "' wrote a program that cannot be opened: ";
    const auto text = [&](const std::exception& error) {
        const std::string what = error.what();
        return subject + (what.starts_with(output + ": ") ? what.substr(output.size() + 2) : what);
    };
    try {
        return std::make_unique<SavedFile>(output, threads);
    } catch (const OtherVersion& error) {
        throw OtherVersion(text(error));
    } catch (const OtherProcessor& error) {
        throw OtherProcessor(text(error));
    } catch (const BadFile& error) {
        throw ConversionError(Kind::kConverter, text(error));
    }
}

}  // namespace

bool has_network_name(const std::string& path) {
    return path.ends_with(".onnx") || path.ends_with(".json");
}

std::unique_ptr<SavedFile> open_network(const std::string& path, int threads, const ConverterOptions& options) {
    if (!has_network_name(path) || begins_as_program(first_bytes(path, kFirstBytes))) {
        return std::make_unique<SavedFile>(path, threads);
    }
    const auto [program, missing] = find_converter(options);
    std::optional<ConversionCache> cache;
    if (!options.cache.empty()) {
        cache.emplace(path, options, program);
        if (auto found = cache->find(threads)) {
            return found;
        }
    }
    if (program.empty()) {
        no_converter(path, missing);
    }
    const PrivateFolder folder(cache ? options.cache : temporary_folder(),
                               cache ? "gk_options.cache_folder" : "the environment variable TMPDIR");
    const std::string output = folder.path() + "/program.gkp";
    convert(path, program, output, options);
    auto opened = open_converted(path, program, output, threads);
    if (cache) {
        cache->keep(output);
    }
    return opened;
}

}  // namespace graphkit
