// Evaluates many expressions of sizes at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/kernel.h"

namespace graphkit {

// A template has no program for the sizes that are asked for.
struct BadSizes : NativeError {
    using NativeError::NativeError;
};

// The value of an instruction of a SizeTable does not exist.
struct BadInstruction : BadSizes {
    std::size_t instruction;

    BadInstruction(const std::string& text, std::size_t number) : BadSizes(text), instruction(number) {}
};

// The sizes in the types of a graph, as expressions of its symbols.
class SizeTable {
  public:
    enum class Operation : std::uint8_t {
        constant,
        symbol,
        add,
        multiply,
        floordiv,
        ceildiv,
        mod,
        min,
        max,
        broadcast
    };

    // `a` of a constant is its value, and that of a symbol its number. Other operands are the numbers of earlier
    // instructions.
    struct Instruction {
        Operation operation;
        std::int64_t a;
        std::int64_t b;
    };

    // `results`: the instruction of each entry. Throws NativeError if an instruction has an operand that is not
    // earlier.
    SizeTable(std::size_t symbols, std::vector<Instruction> instructions, std::vector<std::size_t> results);

    std::size_t symbols() const { return symbols_; }
    std::size_t size() const { return results_.size(); }

    // Returns the value of each entry. Throws BadInstruction for a division by zero, for sizes that do not broadcast,
    // and if a value does not fit in 64 bits. Throws NativeError for another number of symbols.
    Dims values(const Dims& symbols) const;
    // Whether the value of this entry depends on that of an instruction.
    bool depends(std::size_t entry, std::size_t instruction) const;

  private:
    std::size_t symbols_;
    std::vector<Instruction> instructions_;
    std::vector<std::size_t> results_;
};

}  // namespace graphkit
