#include "kernels/pointwise/pointwise.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "primitives/rounding.h"
#include "runtime/bindings.h"
#include "runtime/cpu_info.h"
#include "runtime/isa.h"
#include "runtime/kernel_factory.h"
#include "runtime/recipe.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

constexpr std::int64_t kLine = 64;
constexpr std::size_t kSingleBytes = 64;  // of a constant or a single value: one vector of the widest set
// Bytes of the first-level cache for registers and blocks of operands together.
constexpr std::size_t kBlocksBytes = std::size_t{24} << 10;
constexpr std::int64_t kBlockBytes = 2048;
constexpr std::int64_t kSmallestBlock = 256;
// Longest block of a kernel with a single step: there is no later step that reads its block from the cache.
constexpr std::int64_t kLongBlock = std::int64_t{1} << 20;

std::int64_t bytes_of(const PointwiseSource& source, std::int64_t count, const std::vector<Dims>& inputs) {
    std::int64_t total = 0;
    const std::vector<bool> is_read = source.read_inputs();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const auto bytes = static_cast<std::int64_t>(size_of(source.inputs[i].type));
        total += is_read[i] ? graphkit::count(inputs[i]) * bytes : 0;
    }
    for (const PointwiseOutput& output : source.outputs) {
        total += output.value < 0 ? 0 : count * static_cast<std::int64_t>(size_of(output.type));
    }
    return total;
}

std::vector<Dims> shapes_in(const PointwiseSource& source) {
    std::vector<Dims> shapes;
    for (const PointwiseInput& input : source.inputs) {
        shapes.push_back(input.shape);
    }
    return shapes;
}

// Returns the shapes of the inputs; an input that is not read has an empty shape, so that it need not broadcast.
std::vector<Dims> read_shapes(const PointwiseSource& source, const std::vector<Dims>& inputs) {
    std::vector<Dims> shapes;
    shapes.reserve(inputs.size());
    const std::vector<bool> is_read = source.read_inputs();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        shapes.push_back(is_read[i] ? inputs[i] : Dims{});
    }
    return shapes;
}

std::vector<bool> whole_inputs(const Dims& shape, const std::vector<Dims>& inputs) {
    std::vector<bool> whole;
    whole.reserve(inputs.size());
    for (const Dims& input : inputs) {
        whole.push_back(input == shape);
    }
    return whole;
}

double slowness() {
    switch (isa()) {
        case Isa::avx512:
            return 1;
        case Isa::avx2:
            return 1.7;
        default:
            return 4;
    }
}

}  // namespace

PointwiseCode::PointwiseCode(PointwiseSource source)
    : source_(std::move(source)),
      table_(pointwise_table()),
      constants_(source_.constants.size() * kSingleBytes),
      rows_(BroadcastRows::function_of(source_)) {
    for (std::size_t i = 0; i < source_.constants.size(); ++i) {
        const std::string& bytes = source_.constants[i].bytes;
        table_.splat(constants_.data() + i * kSingleBytes, reinterpret_cast<const std::byte*>(bytes.data()),
                     bytes.size());
    }
}

std::optional<BroadcastRows> PointwiseCode::rows(const Loops& loops) const {
    return BroadcastRows::of(rows_, source_, loops, constants_.data(), kSingleBytes);
}

std::shared_ptr<const BlockSteps> PointwiseCode::steps(const Loops& loops, const std::vector<bool>& whole,
                                                       bool stream) const {
    constexpr std::size_t kMost = 64;
    const bool gathers = std::find(loops.access.begin(), loops.access.end(), Access::gathered) != loops.access.end();
    std::vector<std::int64_t> key{stream ? 1 : 0, gathers ? loops.row() : 0};
    key.reserve(2 + whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i) {
        const bool periodic = loops.access[i] == Access::gathered && loops.is_periodic(i);
        key.push_back(4 * static_cast<std::int64_t>(loops.access[i]) + (periodic ? 2 : 0) + (whole[i] ? 1 : 0));
    }
    const std::lock_guard lock(mutex_);
    if (const auto found = steps_.find(key); found != steps_.end()) {
        return found->second;
    }
    auto made = std::make_shared<const BlockSteps>(make_steps(source_, loops, whole, table_, stream));
    if (steps_.size() < kMost) {
        steps_.emplace(std::move(key), made);
    }
    return made;
}

Pointwise::Pointwise(PointwiseSource source, int threads)
    : Pointwise(std::make_shared<const PointwiseCode>(std::move(source)), threads) {}

Pointwise::Pointwise(const std::shared_ptr<const PointwiseCode>& code, int threads)
    : Pointwise(code, code->source().shape, shapes_in(code->source()), threads) {}

Pointwise::Pointwise(std::shared_ptr<const PointwiseCode> code, const Dims& shape, const std::vector<Dims>& inputs,
                     int threads)
    : Kernel(code->source().name, threads > 0 ? threads : default_threads()),
      code_(std::move(code)),
      loops_(make_loops(shape, read_shapes(code_->source(), inputs))),
      stream_(bytes_of(code_->source(), loops_.count, inputs) > last_level_cache()),
      steps_(code_->steps(loops_, whole_inputs(shape, inputs), stream_)) {
    const PointwiseSource& source = code_->source();
    const BlockSteps& steps = *steps_;
    if (!stream_) {
        rows_ = code_->rows(loops_);
    }
    inputs_.reserve(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const PointwiseInput& input = source.inputs[i];
        inputs_.push_back({std::string("x").append(std::to_string(i)), inputs[i], input.type, input.absent});
    }
    outputs_.reserve(source.outputs.size());
    for (std::size_t i = 0; i < source.outputs.size(); ++i) {
        const PointwiseOutput& output = source.outputs[i];
        outputs_.push_back({std::string("y").append(std::to_string(i)), shape, output.type, output.value < 0});
    }

    granule_ = kLine / static_cast<std::int64_t>(steps.narrowest);
    const auto widest = static_cast<std::int64_t>(steps.widest);
    const bool single = steps.block.size() == 1 && steps.registers == 0;
    block_ = single ? kLongBlock : kBlockBytes / widest;
    const std::size_t blocks = static_cast<std::size_t>(steps.registers) + steps.read.size() + source.outputs.size();
    while (!single && block_ > kSmallestBlock && blocks * static_cast<std::size_t>(block_ * widest) > kBlocksBytes) {
        block_ /= 2;
    }
    if (!loops_.by_rows && loops_.sizes.size() > 1) {
        // If a block consists of whole rows, every block reads the same part of the operands that are equal for all
        // rows.
        std::int64_t period = loops_.row();
        while (period % granule_ != 0 && period <= block_) {
            period += loops_.row();
        }
        block_ = period > 0 && period <= block_ ? block_ / period * period : block_;
    }
    const std::int64_t longest = loops_.by_rows ? loops_.row() : loops_.count;
    block_ = std::max(granule_, std::min(block_, round_up(longest, granule_)));

    const double nanoseconds = static_cast<double>(loops_.count) * steps.nanoseconds * slowness();
    const std::int64_t grains = std::max<std::int64_t>(1, loops_.count / granule_);
    parts_ = static_cast<int>(std::min<std::int64_t>(threads_for(this->threads(), nanoseconds), grains));
    if (rows_ && loops_.count / loops_.row() < parts_) {
        rows_.reset();  // fewer rows than threads: blocks use all threads
    }

    const std::size_t places = static_cast<std::size_t>(steps.places());
    const auto staged = static_cast<std::size_t>(steps.inputs + steps.outputs);
    part_bytes_ = static_cast<std::size_t>(round_up(
        static_cast<std::int64_t>(places * sizeof(BlockOperand) + source.inputs.size() * sizeof(void*)), kLine));
    part_bytes_ += static_cast<std::size_t>(steps.singles) * kSingleBytes;
    part_bytes_ += staged * static_cast<std::size_t>(granule_) * 8;
    part_bytes_ += static_cast<std::size_t>(steps.registers) * static_cast<std::size_t>(block_ * widest);
}

// One thread's loop over its part of the output.
class Pointwise::Walk {
  public:
    Walk(const Pointwise& kernel, const void* const* inputs, void* const* outputs, std::byte* memory)
        : kernel_(kernel), source_(kernel.code_->source()), steps_(*kernel.steps_), inputs_(inputs), outputs_(outputs) {
        places_ = reinterpret_cast<BlockOperand*>(memory);
        bases_ = reinterpret_cast<const std::byte**>(places_ + steps_.places());
        const auto table = static_cast<std::int64_t>(static_cast<std::size_t>(steps_.places()) * sizeof(BlockOperand) +
                                                     static_cast<std::size_t>(steps_.inputs) * sizeof(void*));
        memory += round_up(table, kLine);
        for (int i = 0; i < steps_.constants; ++i) {
            places_[steps_.constant_place(i)] = {
                kernel.code_->constants().data() + static_cast<std::size_t>(i) * kSingleBytes, 0};
        }
        for (int i = 0; i < steps_.singles; ++i) {
            places_[steps_.single_place(i)] = {memory, 0};
            memory += kSingleBytes;
        }
        stage_ = memory;
        memory += (steps_.inputs + steps_.outputs) * kernel.granule_ * 8;
        for (int i = 0; i < steps_.registers; ++i) {
            places_[steps_.register_place(i)] = {memory, -1};
            memory += kernel.block_ * static_cast<std::int64_t>(steps_.widest);
        }
        apart_ = kernel.loops_.by_rows && !kernel.stream_;
        for (const int i : steps_.read) {
            for (int o = 0; o < steps_.outputs; ++o) {
                apart_ = apart_ && inputs[i] != outputs[o];
            }
        }
        for (int o = 0; o < steps_.outputs; ++o) {
            const auto bytes = static_cast<std::int64_t>(size_of(output(o).type));
            const auto address = reinterpret_cast<std::uintptr_t>(outputs[o]);
            in_lines_ = in_lines_ && address % kLine == 0 && kernel.loops_.row() * bytes % kLine == 0;
        }
    }

    void run(std::int64_t begin, std::int64_t end) {
        const Loops& loops = kernel_.loops_;
        run_singles(steps_.once, 0);
        std::int64_t row = loops.by_rows ? begin / loops.row() : 0;
        for (std::int64_t position = begin; position < end; ++row) {
            std::int64_t row_end = end;
            if (loops.by_rows) {
                row_end = std::min(end, (row + 1) * loops.row());
                run_singles(steps_.row, row);
            }
            for (const int i : steps_.read) {
                const auto at = static_cast<std::size_t>(i);
                const std::int64_t shift = loops.by_rows ? loops.row_offset(at, row) - row * loops.row() : 0;
                bases_[i] = source(i) + shift * element(i);
            }
            position = run_row(position, row_end);
        }
    }

  private:
    const std::byte* source(int i) const { return static_cast<const std::byte*>(inputs_[i]); }
    std::byte* target(int i) const { return static_cast<std::byte*>(outputs_[i]); }
    std::int64_t element(int i) const {
        return static_cast<std::int64_t>(size_of(source_.inputs[static_cast<std::size_t>(i)].type));
    }
    const PointwiseOutput& output(int i) const { return source_.outputs[static_cast<std::size_t>(i)]; }
    std::byte* writable(int place) const { return const_cast<std::byte*>(places_[place].data); }

    void run_singles(const std::vector<BlockStep>& steps, std::int64_t row) const {
        for (const BlockStep& step : steps) {
            std::byte* y = writable(step.y);
            if (step.kind == BlockStep::Kind::gather) {
                const std::int64_t offset = kernel_.loops_.row_offset(static_cast<std::size_t>(step.input), row);
                kernel_.code_->table().splat(y, source(step.input) + offset * element(step.input), step.element);
                continue;
            }
            compute(step, 1);
            kernel_.code_->table().splat(y, y, step.element);
        }
    }

    void compute(const BlockStep& step, std::int64_t size) const {
        BlockOperand operands[kMaxOperands];
        for (int i = 0; i < step.count; ++i) {
            // Load the members one by one: a load of both would wait for the two stores that wrote them.
            const std::byte* data = places_[step.x[i]].data;
            std::int64_t mask = places_[step.x[i]].mask;
            asm("" : "+r"(data), "+r"(mask));
            operands[i] = {data, mask};
        }
        step.function(writable(step.y), operands, size);
    }

    std::int64_t run_row(std::int64_t position, std::int64_t end) {
        const std::int64_t head = kernel_.stream_ ? std::min(end - position, elements_before_line(position)) : 0;
        if (head > 0) {
            position = run_tail(position, head);
        }
        const std::int64_t granule = kernel_.granule_;
        const std::int64_t begin = position;
        if (apart_ && !in_lines_ && end - begin >= 4 * granule) {
            // Vectors of the outputs are whole cache lines, except for the first and the last ones of a row.
            const std::int64_t missing = elements_before_line(position);
            if (missing > 0) {
                run_in_place(position, granule);
                position += missing;
            }
        }
        while (end - position >= granule) {
            const std::int64_t size = std::min(kernel_.block_, (end - position) / granule * granule);
            run_in_place(position, size);
            position += size;
        }
        if (position < end && apart_ && end - begin >= granule) {
            // The last whole vectors end with the row: some of their elements are computed twice.
            run_in_place(end - granule, granule);
            return end;
        }
        return position < end ? run_tail(position, end - position) : position;
    }

    // Runs on whole vectors in place, without copies.
    void run_in_place(std::int64_t position, std::int64_t size) {
        for (const int i : steps_.read) {
            places_[i] = {bases_[i] + position * element(i), -1};
        }
        for (int i = 0; i < steps_.outputs; ++i) {
            if (output(i).value >= 0) {
                const auto bytes = static_cast<std::int64_t>(size_of(output(i).type));
                places_[steps_.output_place(i)] = {target(i) + position * bytes, -1};
            }
        }
        run_block(position, size, size);
    }

    // Returns the elements up to the next cache line of the outputs; 0 if the outputs' lines do not begin together.
    std::int64_t elements_before_line(std::int64_t position) const {
        std::int64_t elements = -1;
        for (int i = 0; i < steps_.outputs; ++i) {
            if (output(i).value < 0) {
                continue;
            }
            const auto bytes = static_cast<std::int64_t>(size_of(output(i).type));
            const auto address = reinterpret_cast<std::uintptr_t>(target(i) + position * bytes);
            const std::int64_t missing = (kLine - static_cast<std::int64_t>(address % kLine)) % kLine / bytes;
            if (elements >= 0 && elements != missing) {
                return 0;
            }
            elements = missing;
        }
        return std::min(elements, kernel_.granule_ - 1);
    }

    // Runs on fewer elements than a granule, or on those before a cache line. Operands are copied, since functions read
    // and write whole vectors.
    std::int64_t run_tail(std::int64_t position, std::int64_t size) {
        const std::int64_t slot = kernel_.granule_ * 8;
        for (const int i : steps_.read) {
            std::byte* copy = stage_ + i * slot;
            std::memcpy(copy, bases_[i] + position * element(i), static_cast<std::size_t>(size * element(i)));
            places_[i] = {copy, -1};
        }
        for (int i = 0; i < steps_.outputs; ++i) {
            places_[steps_.output_place(i)] = {stage_ + (steps_.inputs + i) * slot, -1};
        }
        run_block(position, size, kernel_.granule_);
        for (int i = 0; i < steps_.outputs; ++i) {
            if (output(i).value >= 0) {
                const auto bytes = static_cast<std::int64_t>(size_of(output(i).type));
                std::memcpy(target(i) + position * bytes, stage_ + (steps_.inputs + i) * slot,
                            static_cast<std::size_t>(size * bytes));
            }
        }
        return position + size;
    }

    // Runs on a block of `size` elements. `padded`: `size`, rounded up to whole vectors.
    void run_block(std::int64_t position, std::int64_t size, std::int64_t padded) {
        for (const BlockStep& step : steps_.block) {
            if (step.kind == BlockStep::Kind::compute) {
                compute(step, step.exact ? size : padded);
            } else if (step.kind == BlockStep::Kind::gather) {
                gather(step, position, size);
            } else {
                stream(step, padded);
            }
        }
        if (kernel_.loops_.by_rows) {  // rows gather nothing
            return;
        }
        const std::int64_t column = position % kernel_.loops_.row();
        kept_size_ = column == kept_column_ ? std::max(kept_size_, size) : size;
        kept_column_ = column;
    }

    void gather(const BlockStep& step, std::int64_t position, std::int64_t size) {
        const Loops& loops = kernel_.loops_;
        const auto input = static_cast<std::size_t>(step.input);
        // An operand that is equal for all rows has its own register, which still holds the row from the previous
        // block.
        const bool kept = position % loops.row() == kept_column_ && size <= kept_size_ && loops.is_periodic(input);
        if (!kept) {
            gather_block(loops, input, step.element, source(step.input), writable(step.y), position, size);
        }
    }

    void stream(const BlockStep& step, std::int64_t size) const {
        std::byte* y = writable(step.y);
        const std::int64_t bytes = size * static_cast<std::int64_t>(step.element);
        if (reinterpret_cast<std::uintptr_t>(y) % kLine == 0 && bytes % kLine == 0) {
            kernel_.code_->table().stream(y, places_[step.x[0]].data, bytes);
        } else {
            std::memcpy(y, places_[step.x[0]].data, static_cast<std::size_t>(bytes));
        }
    }

    const Pointwise& kernel_;
    const PointwiseSource& source_;
    const BlockSteps& steps_;
    const void* const* inputs_;
    void* const* outputs_;
    BlockOperand* places_;
    // for each input, the address that element 0 of the output would have if all rows were like this one
    const std::byte** bases_;
    std::byte* stage_;
    bool in_lines_ = true;  // each row of the outputs begins with a cache line
    bool apart_;  // no output shares memory with an input, so elements may be computed twice
    // The column where the last block began, and the number of elements from there that its gathered rows hold.
    std::int64_t kept_column_ = -1;
    std::int64_t kept_size_ = 0;
};

bool Pointwise::run_part(const void* const* inputs, void* const* outputs, std::byte* scratch, int part) const {
    if (rows_) {
        const std::int64_t rows = loops_.count / loops_.row();
        rows_->run(inputs, outputs, loops_, rows * part / parts_, rows * (part + 1) / parts_);
        return true;
    }
    const std::int64_t grains = round_up(loops_.count, granule_) / granule_;
    const std::int64_t begin = grains * part / parts_ * granule_;
    const std::int64_t end = std::min(loops_.count, grains * (part + 1) / parts_ * granule_);
    if (begin >= end) {
        return true;
    }
    divided_by_zero = false;
    alignas(kAlignment) std::byte local[kStackBytes];
    std::byte* memory = part_bytes_ > kStackBytes ? scratch + static_cast<std::size_t>(part) * part_bytes_ : local;
    Walk(*this, inputs, outputs, memory).run(begin, end);
    if (stream_) {
        std::atomic_thread_fence(std::memory_order_seq_cst);  // stores that bypass the caches are not ordered otherwise
    }
    return !divided_by_zero;
}

void Pointwise::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    std::atomic<bool> valid = true;
    if (parts_ == 1) {
        valid = run_part(inputs, outputs, scratch, 0);
    } else {
        parallel_for(parts_, parts_, kSerialNanoseconds, [&](std::int64_t first, std::int64_t last) {
            for (std::int64_t part = first; part < last; ++part) {
                if (!run_part(inputs, outputs, scratch, static_cast<int>(part))) {
                    valid.store(false, std::memory_order_relaxed);
                }
            }
        });
    }
    if (!valid) {
        const std::string where = code_->source().divisions.empty() ? "" : " in " + code_->source().divisions;
        throw NativeError(describe() + ": integer division by zero" + where);
    }
}

namespace {

using Input = std::optional<std::tuple<Dims, std::string>>;
using Constant = std::tuple<std::string, RawBytes>;
using Instruction = std::tuple<std::string, std::vector<int>, std::string>;
using Output = std::tuple<int, std::string>;

PointwiseSource source_of(std::string name, Dims shape, const std::vector<Input>& inputs,
                          const std::vector<Constant>& constants, const std::vector<Instruction>& instructions,
                          const std::vector<Output>& outputs) {
    PointwiseSource source;
    source.name = std::move(name);
    source.shape = std::move(shape);
    for (const Input& input : inputs) {
        if (input) {
            source.inputs.push_back({std::get<0>(*input), element_type(std::get<1>(*input))});
        } else {
            source.inputs.push_back({{}, ElementType::f32, true});
        }
    }
    for (const auto& [type, bytes] : constants) {
        source.constants.push_back({element_type(type), bytes.data});
    }
    for (const auto& [opcode, operands, type] : instructions) {
        source.instructions.push_back({opcode, operands, type.empty() ? ElementType::f32 : element_type(type)});
    }
    for (const auto& [value, type] : outputs) {
        source.outputs.push_back({value, element_type(type)});
    }
    return source;
}

// Makes the kernels of one source for all sizes. All outputs must have the same shape.
class PointwiseFactory final : public KernelFactory {
  public:
    PointwiseFactory(PointwiseSource source, int threads)
        : code_(std::make_shared<const PointwiseCode>(std::move(source))), threads_(threads) {}

    std::unique_ptr<Kernel> make(const Shapes& inputs, const Shapes& outputs) const override {
        const Dims& shape = present(outputs, 0);
        for (const auto& other : outputs) {
            if (other != shape) {
                return nullptr;
            }
        }
        const PointwiseSource& source = code_->source();
        std::vector<Dims> shapes;
        shapes.reserve(source.inputs.size());
        for (std::size_t i = 0; i < source.inputs.size(); ++i) {
            shapes.push_back(source.inputs[i].absent ? Dims{} : present(inputs, i));
        }
        return std::make_unique<Pointwise>(code_, shape, shapes, threads_);
    }

  private:
    std::shared_ptr<const PointwiseCode> code_;
    int threads_;
};

}  // namespace

static const RecipeKind pointwise_recipe(
    "Pointwise", +[](Pointwise* self, std::string name, Dims shape, const std::vector<Input>& inputs,
                     const std::vector<Constant>& constants, const std::vector<Instruction>& instructions,
                     const std::vector<Output>& outputs, int threads, std::string divisions) {
        PointwiseSource source = source_of(std::move(name), std::move(shape), inputs, constants, instructions, outputs);
        source.divisions = std::move(divisions);
        new (self) Pointwise(std::move(source), threads);
    });

static const RecipeKind pointwise_factory_recipe(
    "PointwiseFactory",
    +[](PointwiseFactory* self, std::string name, const std::vector<std::optional<std::string>>& inputs,
        const std::vector<Constant>& constants, const std::vector<Instruction>& instructions,
        const std::vector<Output>& outputs, std::string divisions, int threads) {
        std::vector<Input> given;
        for (const auto& type : inputs) {
            given.push_back(type ? Input({Dims(), *type}) : std::nullopt);
        }
        PointwiseSource source = source_of(std::move(name), {}, given, constants, instructions, outputs);
        source.divisions = std::move(divisions);
        new (self) PointwiseFactory(std::move(source), threads);
    });

GRAPHKIT_BINDINGS(pointwise, "sized_kernels") {
    nb::class_<Pointwise, Kernel>(
        m, "Pointwise",
        "Elementwise operations in one pass over memory. Values are numbered: inputs (shape, "
        "element type), constants (element type, bytes of one element), results of "
        "instructions (opcode, operands, element type of a cast's result). float16 and "
        "bfloat16 are computed in float32. Outputs are (value or -1, element type), all of one shape. "
        "`divisions`: the nodes that divide integers, for the error if a divisor is 0.")
        .def("__init__", pointwise_recipe.init(), "name"_a, "shape"_a, nb::kw_only(), "inputs"_a.none(), "constants"_a,
             "instructions"_a, "outputs"_a, "threads"_a = 0, "divisions"_a = "")
        .def_prop_ro("registers", &Pointwise::registers,
                     "Number of blocks of intermediate results that exist at the same time.")
        .def_prop_ro("block", &Pointwise::block, "Number of elements of a block.");
    nb::class_<PointwiseFactory, KernelFactory>(
        m, "PointwiseFactory",
        "Makes the kernels of one list of instructions for all sizes; see Pointwise. `inputs` are "
        "the element types of the operands, None if absent.")
        .def("__init__", pointwise_factory_recipe.init(), "name"_a, "inputs"_a, "constants"_a, "instructions"_a,
             "outputs"_a, "divisions"_a, "threads"_a);
}

}  // namespace graphkit
