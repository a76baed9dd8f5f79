// Saved programs (.gkp files): the steps of a program, the recipes of its kernels, and its weights as kernels read
// them. docs/architecture.md describes the format. graphkit/executor/run/saved_program.py writes it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "c_interface/batch_programs.h"
#include "c_interface/mapped_file.h"
#include "c_interface/program_part.h"
#include "c_interface/sized_template.h"
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

constexpr std::uint32_t kProgramFormat = 4;

// A checksum that continues `seed`, the checksum of what comes before. That of a file is computed from pieces of
// kChecksumPiece bytes after the header.
constexpr std::size_t kChecksumPiece = std::size_t{1} << 20;
std::uint64_t program_checksum(std::string_view bytes, std::uint64_t seed);

// Whether bytes begin as those of a saved program do.
bool begins_as_program(std::string_view bytes);

// Returns the properties of this machine that kernels and layouts of weights depend on: the instruction sets, and the
// version and instruction sets of oneDNN. A file can only be loaded on a machine with the same properties.
std::vector<std::string> program_target();

// Bytes of the random state that nodes read: a seed and a step.
constexpr std::size_t kRandomStateBytes = 2 * sizeof(std::uint64_t);

// The random state of all programs of a file: a seed, and the number of the next run.
class RandomState {
  public:
    using Value = std::pair<std::uint64_t, std::uint64_t>;

    Value get() const;
    void set(std::uint64_t seed, std::uint64_t step);
    // Returns the state of a run, and counts it.
    Value next();

  private:
    mutable std::mutex mutex_;
    std::uint64_t seed_ = 0;
    std::uint64_t step_ = 0;
};

// An input or output.
struct SavedPort {
    std::string name;
    ElementType type;
    Dims shape;
    std::size_t bytes;
};

using SavedPorts = std::vector<SavedPort>;

// The memory that all programs of a file share.
struct SharedParts {
    const std::vector<std::pair<const char*, std::size_t>>& constants;
    const Kernels& kernels;
    RandomState* random;  // null: no program draws random numbers
    int threads;
};

// A program for certain shapes of inputs. Threads may run it at the same time.
class SavedProgram {
  public:
    // `shared` is used during the call only; what it refers to must outlive the program. Throws NativeError if the
    // parts do not fit.
    SavedProgram(SavedPorts inputs, SavedPorts outputs, const std::vector<SavedPart>& parts, const SharedParts& shared);
    ~SavedProgram();

    const SavedPorts& inputs() const { return inputs_; }
    const SavedPorts& outputs() const { return outputs_; }

    // There is one pointer for each input and each output; null for an unused output. Throws LimitReached.
    void run(const void* const* inputs, void* const* outputs, const RunLimits& limits);

  private:
    SavedPorts inputs_;
    SavedPorts outputs_;
    std::vector<std::unique_ptr<ProgramPart>> parts_;
    RandomState* random_;  // if it is there, the last input of the parts
};

// The programs of a file, for different shapes. Their inputs and outputs have the same names, types and ranks.
class SavedFile {
  public:
    // `threads`: most threads of a run; 0: as many as when the file was written, at most one for each core. Throws
    // FileError, BadFile, OtherVersion, OtherProcessor or NativeError.
    SavedFile(const std::string& path, int threads);
    // The same for a copy of the bytes of a file. Errors call them `name`.
    SavedFile(std::string_view bytes, const std::string& name, int threads);
    ~SavedFile();

    const std::vector<std::unique_ptr<SavedProgram>>& programs() const { return programs_; }
    // Null if the file does not say that rows are independent.
    const BatchPrograms* batch() const { return batch_ ? &*batch_ : nullptr; }
    // Null if the file has no program for any sizes.
    SizedTemplate* sized() { return sized_ ? &*sized_ : nullptr; }
    RandomState& random() { return random_; }
    const RandomState& random() const { return random_; }

  private:
    struct Layout;

    void read(const std::string& path, int threads);
    std::string_view checked_metadata(const std::string& path) const;
    void read_programs(const Layout& layout, int threads);

    MappedFile file_;
    RandomState random_;
    std::vector<std::pair<const char*, std::size_t>> constants_;
    Kernels kernels_;
    std::vector<std::unique_ptr<SavedProgram>> programs_;
    std::optional<BatchPrograms> batch_;
    std::optional<SizedTemplate> sized_;
};

}  // namespace graphkit
