#include "c_interface/saved_program.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <new>

#include "onednn/missing_library.h"
#include "runtime/cpu_info.h"
#include "runtime/isa.h"
#include "runtime/threads.h"
#ifdef GRAPHKIT_ONEDNN
#include "onednn/onednn.h"
#endif

namespace graphkit {
namespace {

constexpr std::string_view kMagic{"\x89GKP\r\n\x1a\n", 8};
constexpr std::size_t kHeaderBytes = 64;
constexpr std::size_t kChecksumAt = 56;
constexpr int kMostThreads = 1024;
constexpr std::size_t kMostRank = 64;
constexpr std::size_t kMostPrograms = 4096;

// The first bytes of a file, after the magic.
struct Header {
    std::uint32_t format;
    std::uint32_t byte_order;  // 0x01020304 on machines that can read the file
    std::uint64_t file_bytes;
    std::uint64_t metadata_bytes;  // follows the header
    std::uint64_t data_at;
    std::uint64_t data_bytes;
    std::uint64_t reserved;
};
static_assert(sizeof(Header) == kChecksumAt - kMagic.size());

using Constant = std::pair<std::uint64_t, std::uint64_t>;             // place in the data, bytes
using PortTuple = std::tuple<std::string, std::string, Dims>;  // name, element type, shape
using ProgramTuple = std::tuple<std::vector<PortTuple>, std::vector<PortTuple>, std::vector<SavedPart>>;

Header header_of(std::string_view file) {
    Header header{};
    std::memcpy(&header, file.data() + kMagic.size(), sizeof header);
    return header;
}

std::string joined(const std::vector<std::string>& parts) {
    std::string text;
    for (const std::string& part : parts) {
        text += (text.empty() ? "" : ", ") + part;
    }
    return text;
}

// Returns the parts of `all` that `others` lacks.
std::vector<std::string> without(const std::vector<std::string>& all, const std::vector<std::string>& others) {
    std::vector<std::string> left;
    for (const std::string& part : all) {
        if (std::find(others.begin(), others.end(), part) == others.end()) {
            left.push_back(part);
        }
    }
    return left;
}

void require_target(const std::vector<std::string>& written, const std::string& path) {
    const std::vector<std::string> here = program_target();
    if (written == here) {
        return;
    }
    const std::vector<std::string> lacking = without(written, here), more = without(here, written);
    std::string text = path + ": written for another kind of processor.";
    if (!lacking.empty()) {
        text += " This processor lacks: " + joined(lacking) + ".";
    }
    if (!more.empty()) {
        text += " Only this processor has: " + joined(more) + ".";
    }
    throw OtherProcessor(text + " Write the file again on such a machine");
}

}  // namespace

std::uint64_t program_checksum(std::string_view bytes, std::uint64_t seed) {
    // Four independent sums, so that the processor multiplies in parallel.
    constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15U;
    std::array<std::uint64_t, 4> sums{seed + 1, seed + 2, seed + 3, seed + 4};
    const auto mix = [&](std::uint64_t& sum, std::uint64_t word) {
        sum = (sum ^ word) * kFactor;
        sum ^= sum >> 29;
    };
    std::array<std::uint64_t, 4> words{};
    const std::uint64_t size = bytes.size();
    while (bytes.size() >= sizeof words) {
        std::memcpy(words.data(), bytes.data(), sizeof words);
        for (std::size_t i = 0; i < words.size(); ++i) {
            mix(sums[i], words[i]);
        }
        bytes.remove_prefix(sizeof words);
    }
    words = {};
    std::memcpy(words.data(), bytes.data(), bytes.size());
    std::uint64_t total = size;
    for (std::size_t i = 0; i < words.size(); ++i) {
        mix(sums[i], words[i]);
        mix(total, sums[i]);
    }
    return total;
}

bool begins_as_program(std::string_view bytes) {
    return bytes.substr(0, kMagic.size()) == kMagic;
}

std::vector<std::string> program_target() {
    std::vector<std::string> facts{std::string("kernels for ") + isa_name()};
#ifdef GRAPHKIT_ONEDNN
    facts.push_back("oneDNN " + onednn_version() + " for " + onednn_isa());
#else
    facts.emplace_back("no oneDNN");
#endif
    for (const std::string& feature : cpu_features()) {
        facts.push_back(feature);
    }
    return facts;
}

// The metadata of a file.
struct SavedFile::Layout {
    int threads = 1;
    std::optional<std::uint64_t> seed;  // if the program draws random numbers
    std::vector<Constant> constants;
    std::vector<std::string> recipes;
    std::vector<ProgramTuple> programs;
    std::optional<BatchAxes> batch;
    std::optional<SavedTemplate> sized;

    static Layout read(RecipeReader& from, const std::string& path) {
        const auto version = RecipeCodec<std::string>::read(from);
        if (version != GRAPHKIT_VERSION) {
            throw OtherVersion(path + ": written by graphkit " + version + ", but this library is " + GRAPHKIT_VERSION +
                               ": write the file again");
        }
        require_target(RecipeCodec<std::vector<std::string>>::read(from), path);
        Layout layout;
        layout.threads = RecipeCodec<int>::read(from);
        layout.seed = RecipeCodec<std::optional<std::uint64_t>>::read(from);
        layout.constants = RecipeCodec<std::vector<Constant>>::read(from);
        layout.recipes = RecipeCodec<std::vector<std::string>>::read(from);
        layout.programs = RecipeCodec<std::vector<ProgramTuple>>::read(from);
        layout.batch = RecipeCodec<std::optional<BatchAxes>>::read(from);
        layout.sized = RecipeCodec<std::optional<SavedTemplate>>::read(from);
        from.end();
        if (layout.batch && layout.seed) {
            throw BadFile("a program for a batch draws random numbers");
        }
        if (layout.threads < 1 || layout.threads > kMostThreads) {
            throw BadFile("the number of threads is out of range");
        }
        if (layout.programs.empty() || layout.programs.size() > kMostPrograms) {
            throw BadFile("the number of programs is out of range");
        }
        return layout;
    }
};

std::string_view SavedFile::checked_metadata(const std::string& path) const {
    const std::string_view all = file_.bytes();
    if (all.size() < kHeaderBytes || !begins_as_program(all)) {
        throw BadFile(path +
                      ": not a saved graphkit program. `graphkit export` writes one, a .gkp file. gk_open also "
                      "opens networks whose file names end in .onnx or .json");
    }
    const Header header = header_of(all);
    if (header.byte_order != 0x01020304) {
        throw BadFile(path + ": the bytes of numbers have another order than on this machine");
    }
    if (header.format != kProgramFormat) {
        throw OtherVersion(path + ": the format has version " + std::to_string(header.format) +
                           ", but this library reads version " + std::to_string(kProgramFormat) +
                           ": write the file again");
    }
    const std::uint64_t size = all.size();
    if (header.file_bytes != size) {
        throw BadFile(path + ": the file should have " + std::to_string(header.file_bytes) + " bytes, but has " +
                      std::to_string(size));
    }
    if (header.metadata_bytes > size - kHeaderBytes || header.data_at > size ||
        header.data_at < kHeaderBytes + header.metadata_bytes || header.data_bytes != size - header.data_at ||
        header.data_at % kAlignment != 0) {
        throw BadFile(path + ": the header is damaged");
    }
    std::uint64_t checksum = 0;
    std::memcpy(&checksum, all.data() + kChecksumAt, sizeof checksum);
    std::uint64_t found = program_checksum(all.substr(0, kChecksumAt), 0);
    for (std::size_t at = kHeaderBytes; at < all.size(); at += kChecksumPiece) {
        found = program_checksum(all.substr(at, kChecksumPiece), found);
    }
    if (found != checksum) {
        throw BadFile(path + ": the file is damaged (its checksum is wrong)");
    }
    return all.substr(kHeaderBytes, header.metadata_bytes);
}

namespace {

SavedPorts ports_of(const std::vector<PortTuple>& given) {
    SavedPorts ports;
    for (const auto& [name, type, shape] : given) {
        if (shape.size() > kMostRank) {
            throw BadFile("'" + name + "' has too many axes");
        }
        const ElementType element = element_type(type);
        ports.push_back({name, element, shape, checked_bytes(shape, element)});
    }
    return ports;
}

// Throws BadFile if elements of an input or output would not be aligned in a part.
void check_alignment(const SavedPorts& ports, const SavedSlice* slices) {
    for (std::size_t i = 0; i < ports.size(); ++i) {
        const std::size_t item = size_of(ports[i].type);
        if (slices[i].offset % item != 0 || slices[i].stride % item != 0) {
            throw BadFile("a part of '" + ports[i].name + "' is not aligned");
        }
    }
}

// Whether callers can use ports of two programs in the same way.
bool are_alike(const SavedPorts& one, const SavedPorts& other) {
    return std::equal(one.begin(), one.end(), other.begin(), other.end(), [](const SavedPort& a, const SavedPort& b) {
        return a.name == b.name && a.type == b.type && a.shape.size() == b.shape.size();
    });
}

}  // namespace

RandomState::Value RandomState::get() const {
    const std::lock_guard lock(mutex_);
    return {seed_, step_};
}

void RandomState::set(std::uint64_t seed, std::uint64_t step) {
    const std::lock_guard lock(mutex_);
    seed_ = seed;
    step_ = step;
}

RandomState::Value RandomState::next() {
    const std::lock_guard lock(mutex_);
    return {seed_, step_++};
}

SavedProgram::SavedProgram(SavedPorts inputs, SavedPorts outputs, const std::vector<SavedPart>& parts,
                           const SharedParts& shared)
    : inputs_(std::move(inputs)), outputs_(std::move(outputs)), random_(shared.random) {
    SavedMemory memory;
    for (const SavedPort& port : inputs_) {
        memory.inputs.push_back(port.bytes);
    }
    if (random_ != nullptr) {
        memory.inputs.push_back(kRandomStateBytes);
    }
    for (const SavedPort& port : outputs_) {
        memory.outputs.push_back(port.bytes);
    }
    memory.constants = shared.constants;
    for (const SavedPart& part : parts) {
        parts_.push_back(std::make_unique<ProgramPart>(part, memory, shared.kernels, shared.threads));
        check_alignment(inputs_, part.slices.data());
        check_alignment(outputs_, part.slices.data() + memory.inputs.size());
    }
}

SavedProgram::~SavedProgram() = default;

void SavedProgram::run(const void* const* inputs, void* const* outputs, const RunLimits& limits) {
    std::vector<std::byte*> ports;
    std::vector<std::vector<std::byte>> unused;  // memory of outputs that the caller does not want
    static std::byte empty[kAlignment];          // for an array without elements
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
        const auto* given = static_cast<const std::byte*>(inputs[i]);
        ports.push_back(const_cast<std::byte*>(given == nullptr ? empty : given));
    }
    std::array<std::uint64_t, 2> random{};
    if (random_ != nullptr) {
        std::tie(random[0], random[1]) = random_->next();
        ports.push_back(reinterpret_cast<std::byte*>(random.data()));
    }
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
        auto* given = static_cast<std::byte*>(outputs[i]);
        if (given == nullptr) {
            given = unused.emplace_back(std::max<std::size_t>(outputs_[i].bytes, 1)).data();
        }
        ports.push_back(given);
    }
    for (const auto& part : parts_) {
        part->run(ports, limits);
    }
}

SavedFile::SavedFile(const std::string& path, int threads) : file_(path) {
    read(path, threads);
}

SavedFile::SavedFile(std::string_view bytes, const std::string& name, int threads) : file_(bytes) {
    read(name, threads);
}

void SavedFile::read(const std::string& path, int threads) {
    const std::string_view metadata = checked_metadata(path);
    try {
        RecipeReader from(metadata);
        read_programs(Layout::read(from, path), threads);
    } catch (const OtherVersion&) {
        throw;
    } catch (const OtherProcessor&) {
        throw;
    } catch (const MissingLibrary&) {
        throw;
    } catch (const std::bad_alloc&) {
        throw;
    } catch (const std::exception& error) {
        throw BadFile(path + ": " + error.what());
    }
}

SavedFile::~SavedFile() = default;

void SavedFile::read_programs(const Layout& layout, int threads) {
    random_.set(layout.seed.value_or(0), 0);
    const std::string_view data = file_.bytes().substr(header_of(file_.bytes()).data_at);
    for (const auto& [place, bytes] : layout.constants) {
        if (place > data.size() || bytes > data.size() - place || place % kAlignment != 0) {
            throw BadFile("a constant is outside of the file");
        }
        constants_.emplace_back(data.data() + place, bytes);
    }
    for (const std::string& recipe : layout.recipes) {
        kernels_.push_back(make_kernel(recipe));
    }
    const int most = std::min(layout.threads, threads > 0 ? threads : default_threads());
    const SharedParts shared{constants_, kernels_, layout.seed ? &random_ : nullptr, most};
    for (const auto& [inputs, outputs, parts] : layout.programs) {
        programs_.push_back(std::make_unique<SavedProgram>(ports_of(inputs), ports_of(outputs), parts, shared));
        if (!are_alike(programs_.back()->inputs(), programs_[0]->inputs()) ||
            !are_alike(programs_.back()->outputs(), programs_[0]->outputs())) {
            throw BadFile("the programs have different inputs or outputs");
        }
    }
    if (layout.batch) {
        batch_.emplace(*layout.batch, programs_);
    }
    if (layout.sized) {
        sized_.emplace(*layout.sized, programs_[0]->inputs(), programs_[0]->outputs(), constants_, shared.random, most);
    }
}

}  // namespace graphkit
