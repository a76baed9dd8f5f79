// Saved programs (.gkp files): the steps of a program, the recipes of its kernels, and its weights as kernels read
// them. docs/architecture.md describes the format. graphkit/executor/run/saved_program.py writes it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "c_interface/mapped_file.h"
#include "c_interface/program_part.h"
#include "runtime/kernel.h"

namespace graphkit {

// A file is not a saved program, or is damaged.
struct BadFile : NativeError {
    using NativeError::NativeError;
};

// Another version of graphkit wrote the file.
struct OtherVersion : NativeError {
    using NativeError::NativeError;
};

// The file was written for another kind of processor.
struct OtherProcessor : NativeError {
    using NativeError::NativeError;
};

constexpr std::uint32_t kProgramFormat = 2;

// A checksum that continues `seed`, the checksum of what comes before. That of a file is computed from pieces of
// kChecksumPiece bytes after the header.
constexpr std::size_t kChecksumPiece = std::size_t{1} << 20;
std::uint64_t program_checksum(std::string_view bytes, std::uint64_t seed);

// Returns the properties of this machine that kernels and layouts of weights depend on: the instruction sets, and the
// version and instruction sets of oneDNN. A file can only be loaded on a machine with the same properties.
std::vector<std::string> program_target();

// A program from a file. Threads may run it at the same time.
class SavedProgram {
  public:
    // An input or output.
    struct Port {
        std::string name;
        ElementType type;
        Dims shape;
        std::size_t bytes;
    };

    // `threads`: most threads of a run; 0: as many as when the file was written, at most one for each core. Throws
    // FileError, BadFile, OtherVersion, OtherProcessor or NativeError.
    SavedProgram(const std::string& path, int threads);
    ~SavedProgram();

    const std::vector<Port>& inputs() const { return inputs_; }
    const std::vector<Port>& outputs() const { return outputs_; }

    // The seed of random numbers, and the number of the next run. Each run that draws numbers counts.
    std::pair<std::uint64_t, std::uint64_t> random_state() const;
    void set_random_state(std::uint64_t seed, std::uint64_t step);

    // There is one pointer for each input and each output; null for an unused output.
    // Throws LimitReached.
    void run(const void* const* inputs, void* const* outputs, const RunLimits& limits);

  private:
    struct Layout;

    std::string_view checked_metadata(const std::string& path) const;
    SavedMemory memory(const Layout& layout) const;

    std::pair<std::uint64_t, std::uint64_t> next_random_state();

    MappedFile file_;
    std::vector<Port> inputs_;
    std::vector<Port> outputs_;
    Kernels kernels_;
    std::vector<std::unique_ptr<ProgramPart>> parts_;
    bool draws_ = false;  // then the last input of the parts is the random state
    mutable std::mutex mutex_;
    std::uint64_t seed_ = 0;
    std::uint64_t step_ = 0;
};

}  // namespace graphkit
