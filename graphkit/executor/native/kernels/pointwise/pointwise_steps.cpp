#include "kernels/pointwise/pointwise_steps.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>

namespace graphkit {
namespace {

std::size_t index(ElementType type) {
    return static_cast<std::size_t>(type);
}

bool is_half(ElementType type) {
    return type == ElementType::f16 || type == ElementType::bf16;
}

bool is_comparison(Opcode opcode) {
    return opcode == Opcode::equal || opcode == Opcode::not_equal || opcode == Opcode::less ||
           opcode == Opcode::less_equal;
}

// Returns the opcode that selects by the result of this comparison.
Opcode selection_by(Opcode comparison) {
    switch (comparison) {
        case Opcode::equal:
            return Opcode::select_equal;
        case Opcode::not_equal:
            return Opcode::select_not_equal;
        case Opcode::less:
            return Opcode::select_less;
        default:
            return Opcode::select_less_equal;
    }
}

const std::unordered_map<std::string, Opcode>& opcodes_by_name() {
    // Never destroyed: a run may make kernels while the process ends.
    static const std::unordered_map<std::string, Opcode>& known = *[] {
        auto* const names = new std::unordered_map<std::string, Opcode>;
        for (std::size_t i = 0; i < kOpcodeCount; ++i) {
            (*names)[kOpcodes[i].name] = static_cast<Opcode>(i);
        }
        return names;
    }();
    return known;
}

constexpr int kNowhere = -1;
constexpr int kForever = std::numeric_limits<int>::max();

struct Value {
    ElementType type;
    Level level;
    int place = kNowhere;  // known from the start for inputs, outputs and constants; registers are assigned at the end
    int single = kNowhere;
    int reg = kNowhere;
};

// A step whose operands are still numbers of values.
struct Draft {
    BlockStep step;
    int y;  // a value; kNowhere if the step writes an output
    std::vector<int> x;
    int output = kNowhere;
};

class Compiler {
  public:
    Compiler(const PointwiseSource& source, const Loops& loops, const std::vector<bool>& whole,
             const PointwiseTable& table, bool stream)
        : source_(source), loops_(loops), whole_(whole), table_(table), stream_(stream) {
        steps_.inputs = static_cast<int>(source.inputs.size());
        steps_.outputs = static_cast<int>(source.outputs.size());
        steps_.constants = static_cast<int>(source.constants.size());
    }

    BlockSteps compile() {
        declare();
        for (int i = 0; i < number_of_sources(); ++i) {
            store_outputs(i);
        }
        find_conditions();
        for (const PointwiseInstruction& instruction : source_.instructions) {
            numbers_.push_back(is_condition(static_cast<int>(numbers_.size())) ? kNowhere : add(instruction));
            store_outputs(static_cast<int>(numbers_.size()) - 1);
        }
        allocate();
        find_inplace();
        finish();
        return std::move(steps_);
    }

  private:
    int number_of_sources() const { return steps_.inputs + steps_.constants; }

    void declare() {
        for (int i = 0; i < steps_.inputs; ++i) {
            const auto at = static_cast<std::size_t>(i);
            const Access access = loops_.access[at];
            const Level level = access == Access::scalar ? Level::once
                                : access == Access::row  ? Level::row
                                                         : Level::block;
            numbers_.push_back(make(source_.inputs[at].type, level, i));
        }
        for (int i = 0; i < steps_.constants; ++i) {
            const PointwiseConstant& constant = source_.constants[static_cast<std::size_t>(i)];
            if (is_half(constant.type) || constant.bytes.size() != size_of(constant.type)) {
                throw NativeError(source_.name + ": a constant has the wrong size or type");
            }
            numbers_.push_back(make(constant.type, Level::once, steps_.constant_place(i)));
        }
        for (const PointwiseOutput& output : source_.outputs) {
            const int last = number_of_sources() + static_cast<int>(source_.instructions.size());
            if (output.value < kNowhere || output.value >= last) {
                throw NativeError(source_.name + ": an output is no value");
            }
        }
    }

    int make(ElementType type, Level level, int place = kNowhere) {
        values_.push_back({type, level, place});
        return static_cast<int>(values_.size()) - 1;
    }

    Value& value(int i) { return values_[static_cast<std::size_t>(i)]; }

    // Adds a step that computes a new value.
    int emit(BlockFunction function, ElementType type, std::vector<int> x, double nanoseconds) {
        if (function == nullptr) {
            throw Unsupported(source_.name + ": an instruction is not defined for " +
                              (x.empty() ? "its type" : name_of(value(x[0]).type)));
        }
        Level level = Level::once;
        for (const int operand : x) {
            level = std::max(level, value(operand).level);
        }
        Draft draft{{}, make(type, level), std::move(x)};
        draft.step.function = function;
        draft.step.element = size_of(type);
        if (level == Level::block) {
            steps_.nanoseconds += nanoseconds;
        } else {
            value(draft.y).single = steps_.singles++;
        }
        drafts_.push_back(draft);
        return draft.y;
    }

    // Returns the value of input i for instructions: gathered if its rows are short, widened to float if it is float16
    // or bfloat16.
    int loaded(int i) {
        const auto at = static_cast<std::size_t>(i);
        const auto known = loaded_.find(i);
        if (known != loaded_.end()) {
            return known->second;
        }
        const PointwiseInput& input = source_.inputs[at];
        if (input.absent) {
            throw NativeError(source_.name + ": an operand that is absent is read");
        }
        int number = numbers_[at];
        if (value(number).level != Level::block) {
            const int single = make(input.type, value(number).level);
            value(single).single = steps_.singles++;
            Draft draft{{}, single, {}};
            draft.step.kind = BlockStep::Kind::gather;
            draft.step.input = i;
            draft.step.element = size_of(input.type);
            drafts_.push_back(draft);
            number = single;
        } else if (loops_.access[at] == Access::gathered) {
            const int block = make(input.type, Level::block);
            Draft draft{{}, block, {}};
            draft.step.kind = BlockStep::Kind::gather;
            draft.step.input = i;
            draft.step.element = size_of(input.type);
            steps_.nanoseconds += 0.05 + 3.0 / static_cast<double>(std::max<std::int64_t>(loops_.row(), 1));
            drafts_.push_back(draft);
            number = block;
        } else {
            steps_.read.push_back(i);
            steps_.nanoseconds += 0.02 * static_cast<double>(size_of(input.type));
        }
        if (is_half(input.type)) {
            number = emit(table_.casts[index(input.type)][index(ElementType::f32)], ElementType::f32, {number}, 0.05);
        }
        loaded_[i] = number;
        return number;
    }

    int operand(int number) {
        if (number < 0 || number >= static_cast<int>(numbers_.size())) {
            throw NativeError(source_.name + ": an instruction reads a value that does not exist yet");
        }
        return number < steps_.inputs ? loaded(number) : numbers_[static_cast<std::size_t>(number)];
    }

    // Finds comparisons that are only the condition of one selection: they become part of that selection.
    void find_conditions() {
        std::vector<int> readers(static_cast<std::size_t>(number_of_sources()) + source_.instructions.size());
        std::vector<bool> selected(readers.size());
        for (const PointwiseInstruction& instruction : source_.instructions) {
            for (std::size_t i = 0; i < instruction.operands.size(); ++i) {
                const auto number = static_cast<std::size_t>(instruction.operands[i]);
                if (number < readers.size()) {
                    ++readers[number];
                    selected[number] = instruction.opcode == "select" && i == 0;
                }
            }
        }
        for (const PointwiseOutput& output : source_.outputs) {
            if (output.value >= 0) {
                ++readers[static_cast<std::size_t>(output.value)];
            }
        }
        conditions_.resize(readers.size());
        for (std::size_t i = 0; i < source_.instructions.size(); ++i) {
            const std::size_t number = static_cast<std::size_t>(number_of_sources()) + i;
            const auto found = opcodes_by_name().find(source_.instructions[i].opcode);
            conditions_[number] = readers[number] == 1 && selected[number] && found != opcodes_by_name().end() &&
                                  is_comparison(found->second) && source_.instructions[i].operands.size() == 2;
        }
    }

    bool is_condition(int number) const { return conditions_[static_cast<std::size_t>(number)]; }

    // Adds a selection by a comparison: one step if both have the same element type, else two.
    int add_selection(const PointwiseInstruction& instruction) {
        const int number = instruction.operands[0];
        const PointwiseInstruction& comparison =
            source_.instructions[static_cast<std::size_t>(number - number_of_sources())];
        const std::vector<int> x = {operand(comparison.operands[0]), operand(comparison.operands[1]),
                                    operand(instruction.operands[1]), operand(instruction.operands[2])};
        const ElementType type = value(x[2]).type;
        const bool one_type = std::all_of(x.begin(), x.end(), [&](int i) { return value(i).type == type; });
        const Opcode opcode = selection_by(opcodes_by_name().at(comparison.opcode));
        const BlockFunction function = table_.functions[index_of(opcode)][index(type)];
        if (one_type && function != nullptr) {
            const double scale = static_cast<double>(size_of(type)) / 4;
            return emit(function, type, x, kOpcodes[index_of(opcode)].nanoseconds * scale);
        }
        numbers_[static_cast<std::size_t>(number)] = add(comparison);
        conditions_[static_cast<std::size_t>(number)] = false;
        return add(instruction);
    }

    int add(const PointwiseInstruction& instruction) {
        if (instruction.opcode == "select" && instruction.operands.size() == 3 && instruction.operands[0] >= 0 &&
            instruction.operands[0] < static_cast<int>(numbers_.size()) && is_condition(instruction.operands[0])) {
            return add_selection(instruction);
        }
        std::vector<int> x;
        for (const int number : instruction.operands) {
            x.push_back(operand(number));
        }
        if (instruction.opcode == "cast" || instruction.opcode == "cast_to_odd") {
            if (x.size() != 1 || is_half(instruction.type)) {
                throw NativeError(source_.name + ": a cast takes one operand, and cannot return float16 or bfloat16");
            }
            const ElementType from = value(x[0]).type;
            const bool odd = instruction.opcode == "cast_to_odd";
            if (odd && (from != ElementType::f64 || instruction.type != ElementType::f32)) {
                throw NativeError(source_.name + ": rounding to odd is for float64 to float32");
            }
            return emit(odd ? table_.narrow_to_odd : table_.casts[index(from)][index(instruction.type)],
                        instruction.type, x, odd ? 1.0 : 0.05);
        }
        const auto found = opcodes_by_name().find(instruction.opcode);
        if (found == opcodes_by_name().end()) {
            throw NativeError(source_.name + ": no instruction '" + instruction.opcode + "'");
        }
        const Opcode opcode = found->second;
        const OpcodeInfo& info = kOpcodes[static_cast<std::size_t>(opcode)];
        if (static_cast<int>(x.size()) != info.operands) {
            throw NativeError(source_.name + ": '" + info.name + "' takes another number of operands");
        }
        const bool selects = opcode == Opcode::select;
        const ElementType type = value(x[selects ? 1 : 0]).type;
        for (std::size_t i = selects ? 1 : 0; i < x.size(); ++i) {
            if (value(x[i]).type != type) {
                throw NativeError(source_.name + ": the operands of '" + info.name + "' have several types");
            }
        }
        if (selects && value(x[0]).type != ElementType::boolean) {
            throw NativeError(source_.name + ": a selection needs a boolean condition");
        }
        const ElementType result = is_comparison(opcode) ? ElementType::boolean : type;
        const double scale = static_cast<double>(size_of(type)) / 4;
        const int number =
            emit(table_.functions[static_cast<std::size_t>(opcode)][index(type)], result, x, info.nanoseconds * scale);
        drafts_.back().step.exact = may_divide_by_zero(opcode, type != ElementType::f32 && type != ElementType::f64);
        return number;
    }

    // Adds what writes the outputs with value number `number`. The step that computes the value writes to the first of
    // them if possible. Further steps copy, round to float16 or bfloat16, or write past the caches.
    void store_outputs(int number) {
        for (int i = 0; i < steps_.outputs; ++i) {
            const PointwiseOutput& output = source_.outputs[static_cast<std::size_t>(i)];
            if (output.value != number) {
                continue;
            }
            int from = operand(number);
            steps_.nanoseconds += 0.02 * static_cast<double>(size_of(output.type));
            const bool is_source = number < number_of_sources();
            if (value(from).type != (is_half(output.type) ? ElementType::f32 : output.type)) {
                throw NativeError(source_.name + ": an output has another type than its value");
            }
            BlockFunction store = table_.functions[index_of(Opcode::copy)][index(value(from).type)];
            if (is_half(output.type)) {
                store = table_.casts[index(ElementType::f32)][index(output.type)];
            } else if (!stream_ && !is_source && value(from).level == Level::block && value(from).place == kNowhere) {
                value(from).place = steps_.output_place(i);
                continue;
            }
            if (stream_ && (is_half(output.type) || value(from).level != Level::block)) {
                const int narrow = make(output.type, Level::block);
                Draft draft{{}, narrow, {from}};
                draft.step.function = store;
                draft.step.element = size_of(output.type);
                drafts_.push_back(draft);
                from = narrow;
            }
            Draft draft{{}, kNowhere, {from}, i};
            draft.step.kind = stream_ ? BlockStep::Kind::stream : BlockStep::Kind::compute;
            draft.step.function = store;
            draft.step.element = size_of(output.type);
            drafts_.push_back(draft);
        }
    }

    static std::size_t index_of(Opcode opcode) { return static_cast<std::size_t>(opcode); }

    Level level_of(const Draft& draft) { return draft.y == kNowhere ? Level::block : value(draft.y).level; }

    // A linear scan: a register is free after the last step that reads it. A result may use the register of an operand
    // that ends there, unless its elements are larger.
    void allocate() {
        std::vector<int> last(values_.size(), kNowhere);
        for (std::size_t i = 0; i < drafts_.size(); ++i) {
            for (const int x : drafts_[i].x) {
                last[static_cast<std::size_t>(x)] = static_cast<int>(i);
            }
            // A value that is equal in every block keeps its register.
            if (drafts_[i].step.kind == BlockStep::Kind::gather && level_of(drafts_[i]) == Level::block &&
                loops_.is_periodic(static_cast<std::size_t>(drafts_[i].step.input))) {
                pinned_.push_back(drafts_[i].y);
            }
        }
        for (const int y : pinned_) {
            value(y).reg = steps_.registers++;
            last[static_cast<std::size_t>(y)] = kForever;
        }
        std::vector<int> free;
        for (std::size_t i = 0; i < drafts_.size(); ++i) {
            const Draft& draft = drafts_[i];
            if (level_of(draft) != Level::block) {
                continue;
            }
            const auto release = [&](bool reusable) {
                for (const int x : draft.x) {
                    Value& operand = value(x);
                    const bool fits = draft.y == kNowhere || size_of(operand.type) >= size_of(value(draft.y).type);
                    if (last[static_cast<std::size_t>(x)] == static_cast<int>(i) && operand.reg != kNowhere &&
                        fits == reusable) {
                        free.push_back(operand.reg);
                        last[static_cast<std::size_t>(x)] = kNowhere;
                    }
                }
            };
            release(true);
            if (draft.y != kNowhere && value(draft.y).place == kNowhere && value(draft.y).reg == kNowhere) {
                Value& result = value(draft.y);
                if (free.empty()) {
                    free.push_back(steps_.registers++);
                }
                result.reg = free.back();
                free.pop_back();
                if (last[static_cast<std::size_t>(draft.y)] == kNowhere) {  // not used
                    free.push_back(result.reg);
                }
            }
            release(false);
        }
    }

    // An output may share the memory of an input with its shape and element size, if no step reads the input after a
    // step that writes the output.
    void find_inplace() {
        std::vector<std::size_t> last_read(static_cast<std::size_t>(steps_.inputs));
        std::vector<std::size_t> first_write(static_cast<std::size_t>(steps_.outputs), drafts_.size());
        for (std::size_t at = 0; at < drafts_.size(); ++at) {
            const Draft& draft = drafts_[at];
            if (draft.step.input >= 0) {
                last_read[static_cast<std::size_t>(draft.step.input)] = at;
            }
            for (const int x : draft.x) {
                if (const int place = value(x).place; place >= 0 && place < steps_.inputs) {
                    last_read[static_cast<std::size_t>(place)] = at;
                }
            }
            const int place = draft.y == kNowhere ? steps_.output_place(draft.output) : value(draft.y).place;
            if (const int output = place - steps_.inputs; output >= 0 && output < steps_.outputs) {
                std::size_t& first = first_write[static_cast<std::size_t>(output)];
                first = std::min(first, at);
            }
        }
        const std::vector<bool> is_read = source_.read_inputs();
        for (std::size_t i = 0; i < last_read.size(); ++i) {
            for (std::size_t o = 0; is_read[i] && whole_[i] && o < first_write.size(); ++o) {
                const bool fits = size_of(source_.outputs[o].type) == size_of(source_.inputs[i].type);
                if (fits && first_write[o] < drafts_.size() && last_read[i] <= first_write[o]) {
                    steps_.inplace.emplace_back(static_cast<int>(i), static_cast<int>(o));
                }
            }
        }
    }

    int place_of(int i) {
        const Value& found = value(i);
        return found.place != kNowhere    ? found.place
               : found.single != kNowhere ? steps_.single_place(found.single)
                                          : steps_.register_place(found.reg);
    }

    void note_size(std::size_t bytes) {
        steps_.widest = std::max(steps_.widest, bytes);
        steps_.narrowest = std::min(steps_.narrowest, bytes);
    }

    void finish() {
        for (Draft& draft : drafts_) {
            BlockStep step = draft.step;
            step.y = draft.y == kNowhere ? steps_.output_place(draft.output) : place_of(draft.y);
            step.count = static_cast<int>(draft.x.size());
            for (std::size_t k = 0; k < draft.x.size(); ++k) {
                step.x[k] = place_of(draft.x[k]);
            }
            const Level level = level_of(draft);
            if (level == Level::block) {
                note_size(step.element);
                for (const int x : draft.x) {
                    note_size(size_of(value(x).type));
                }
            }
            (level == Level::once ? steps_.once : level == Level::row ? steps_.row : steps_.block).push_back(step);
        }
    }

    const PointwiseSource& source_;
    const Loops& loops_;
    const std::vector<bool>& whole_;
    const PointwiseTable& table_;
    bool stream_;
    BlockSteps steps_;
    std::vector<Value> values_;
    std::vector<int> numbers_;  // numbers of values, by number in the source
    std::map<int, int> loaded_;
    std::vector<Draft> drafts_;
    std::vector<int> pinned_;
    std::vector<bool> conditions_;  // by number in the source: the selection that reads the value computes it
};

}  // namespace

std::vector<bool> PointwiseSource::read_inputs() const {
    std::vector<bool> found(inputs.size());
    const auto note = [&](int number) {
        if (number >= 0 && number < static_cast<int>(found.size())) {
            found[static_cast<std::size_t>(number)] = true;
        }
    };
    for (const PointwiseOutput& output : outputs) {
        note(output.value);
    }
    for (const PointwiseInstruction& instruction : instructions) {
        std::for_each(instruction.operands.begin(), instruction.operands.end(), note);
    }
    return found;
}

BlockSteps make_steps(const PointwiseSource& source, const Loops& loops, const std::vector<bool>& whole,
                      const PointwiseTable& table, bool stream) {
    return Compiler(source, loops, whole, table, stream).compile();
}

}  // namespace graphkit
