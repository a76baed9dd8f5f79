// Compiles the instructions of a pointwise kernel to steps over blocks: assigns a place to every value, and finds how
// often it changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/pointwise/pointwise_layout.h"
#include "kernels/pointwise/pointwise_table.h"
#include "runtime/kernel.h"

namespace graphkit {

// One instruction: the name of an opcode, and the numbers of its operands. Values are numbered: inputs, then constants,
// then the results of the instructions in order. "cast" converts to `type`.
struct PointwiseInstruction {
    std::string opcode;
    std::vector<int> operands;
    ElementType type = ElementType::f32;
};

struct PointwiseInput {
    Dims shape;
    ElementType type;
    bool absent = false;  // the operand is absent; no instruction reads it
};

// The bytes of one element; float16 and bfloat16 constants are given as float32.
struct PointwiseConstant {
    ElementType type;
    std::string bytes;
};

// The number of the value that an output stores; -1 if the output is not used. For float16 and bfloat16 outputs, the
// value is a float.
struct PointwiseOutput {
    int value;
    ElementType type;
};

struct PointwiseSource {
    std::string name;
    Dims shape;  // of every output
    std::vector<PointwiseInput> inputs;
    std::vector<PointwiseConstant> constants;
    std::vector<PointwiseInstruction> instructions;
    std::vector<PointwiseOutput> outputs;
    std::string divisions;  // the nodes that divide integers, for the error if a divisor is 0

    // For each input, whether an instruction or an output reads it.
    std::vector<bool> read_inputs() const;
};

// How often a value is computed: once, for each row, or for each block.
enum class Level : std::uint8_t { once, row, block };

struct BlockStep {
    enum class Kind : std::uint8_t { compute, gather, stream };

    Kind kind = Kind::compute;
    BlockFunction function = nullptr;
    int y = 0;                 // places of the result and the operands (see BlockSteps)
    int x[kMaxOperands] = {};
    int count = 0;  // of operands
    int input = -1;            // that a gather reads
    std::size_t element = 0;   // bytes of an element of y
    bool exact = false;        // computes no elements behind the last one: they might be divided by 0
};

// Places are numbered: inputs, outputs, constants, single values, registers. A register holds a block; a single value
// is repeated to fill a vector.
struct BlockSteps {
    std::vector<BlockStep> once;
    std::vector<BlockStep> row;
    std::vector<BlockStep> block;
    std::vector<int> read;              // inputs that are read in place, block by block
    int inputs = 0;
    int outputs = 0;
    int constants = 0;
    int singles = 0;
    int registers = 0;
    std::size_t widest = 1;             // bytes of the largest element in a block, and of the smallest
    std::size_t narrowest = 8;
    double nanoseconds = 0;             // estimated time for one element, with wide vectors
    std::vector<std::pair<int, int>> inplace;

    int output_place(int i) const { return inputs + i; }
    int constant_place(int i) const { return inputs + outputs + i; }
    int single_place(int i) const { return inputs + outputs + constants + i; }
    int register_place(int i) const { return inputs + outputs + constants + singles + i; }
    int places() const { return register_place(registers); }
};

// `whole`: which inputs have the shape of the outputs. `stream`: outputs bypass the caches. The shapes in `source` are
// not read. Throws NativeError for invalid instructions, Unsupported for types that an opcode is not defined for.
BlockSteps make_steps(const PointwiseSource& source, const Loops& loops, const std::vector<bool>& whole,
                      const PointwiseTable& table, bool stream);

}  // namespace graphkit
