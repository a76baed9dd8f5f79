#include "runtime/size_table.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "runtime/bindings.h"

namespace graphkit {
namespace {

using Operation = SizeTable::Operation;

constexpr std::array<const char*, 10> kOperations{"constant", "symbol", "add", "multiply", "floordiv",
                                                  "ceildiv",  "mod",    "min", "max",      "broadcast"};

Operation operation_of(const std::string& name) {
    const auto* const found = std::find(kOperations.begin(), kOperations.end(), name);
    if (found == kOperations.end()) {
        throw NativeError("sizes have no operation " + name);
    }
    return static_cast<Operation>(found - kOperations.begin());
}

[[noreturn]] void overflow() {
    throw NativeError("a size does not fit in 64 bits");
}

// Requires that `b` is not 0, and that a / b fits.
void require_divisible(std::int64_t a, std::int64_t b, const char* what) {
    if (b == 0) {
        throw NativeError(std::string(what) + " of a dimension by zero");
    }
    if (b == -1 && a == std::numeric_limits<std::int64_t>::min()) {
        overflow();
    }
}

// 1 if the division leaves a rest and the exact quotient is negative (`negative`) or positive, else 0.
std::int64_t rounded(std::int64_t a, std::int64_t b, bool negative) {
    return a % b != 0 && ((a < 0) != (b < 0)) == negative ? 1 : 0;
}

std::int64_t apply(Operation operation, std::int64_t a, std::int64_t b) {
    std::int64_t result = 0;
    switch (operation) {
        case Operation::add:
            return __builtin_add_overflow(a, b, &result) ? (overflow(), 0) : result;
        case Operation::multiply:
            return __builtin_mul_overflow(a, b, &result) ? (overflow(), 0) : result;
        case Operation::floordiv:
            require_divisible(a, b, "division");
            return a / b - rounded(a, b, true);
        case Operation::ceildiv:
            require_divisible(a, b, "division");
            return a / b + rounded(a, b, false);
        case Operation::mod:
            require_divisible(a, b, "remainder");
            return a % b + rounded(a, b, true) * b;
        case Operation::min:
            return std::min(a, b);
        case Operation::max:
            return std::max(a, b);
        case Operation::broadcast:
            if (a != b && a != 1 && b != 1) {
                throw NativeError("dimensions " + std::to_string(a) + " and " + std::to_string(b) +
                                  " do not broadcast");
            }
            return a == 1 ? b : a;
        case Operation::constant:
        case Operation::symbol:
            break;
    }
    return result;
}

}  // namespace

SizeTable::SizeTable(std::size_t symbols, std::vector<Instruction> instructions, std::vector<std::size_t> results)
    : symbols_(symbols), instructions_(std::move(instructions)), results_(std::move(results)) {
    const auto require = [](std::int64_t operand, std::size_t end) {
        if (operand < 0 || static_cast<std::size_t>(operand) >= end) {
            throw NativeError("an instruction of sizes has an unknown operand");
        }
    };
    for (std::size_t i = 0; i < instructions_.size(); ++i) {
        const auto [operation, a, b] = instructions_[i];
        if (operation == Operation::symbol) {
            require(a, symbols_);
        } else if (operation != Operation::constant) {
            require(a, i);
            require(b, i);
        }
    }
    for (const std::size_t result : results_) {
        require(static_cast<std::int64_t>(result), instructions_.size());
    }
}

Dims SizeTable::values(const Dims& symbols) const {
    if (symbols.size() != symbols_) {
        throw NativeError("sizes: one value for each symbol is needed");
    }
    Dims found(instructions_.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
        const auto [operation, a, b] = instructions_[i];
        if (operation == Operation::constant) {
            found[i] = a;
        } else if (operation == Operation::symbol) {
            found[i] = symbols[static_cast<std::size_t>(a)];
        } else {
            try {
                found[i] = apply(operation, found[static_cast<std::size_t>(a)], found[static_cast<std::size_t>(b)]);
            } catch (const NativeError& error) {
                throw BadInstruction(error.what(), i);
            }
        }
    }
    Dims values;
    values.reserve(results_.size());
    for (const std::size_t result : results_) {
        values.push_back(found[result]);
    }
    return values;
}

bool SizeTable::depends(std::size_t entry, std::size_t instruction) const {
    std::vector<bool> reached(instructions_.size());
    reached[results_[entry]] = true;
    for (std::size_t i = results_[entry]; i > instruction; --i) {
        const auto [operation, a, b] = instructions_[i];
        if (reached[i] && operation != Operation::constant && operation != Operation::symbol) {
            reached[static_cast<std::size_t>(a)] = true;
            reached[static_cast<std::size_t>(b)] = true;
        }
    }
    return reached[instruction];
}

GRAPHKIT_BINDINGS(size_table) {
    using Given = std::tuple<std::string, std::int64_t, std::int64_t>;
    nb::class_<SizeTable>(m, "SizeTable", "Expressions of sizes, which are evaluated together.")
        .def(
            "__init__",
            [](SizeTable* self, std::size_t symbols, const std::vector<Given>& instructions,
               std::vector<std::size_t> results) {
                std::vector<SizeTable::Instruction> made;
                for (const auto& [operation, a, b] : instructions) {
                    made.push_back({operation_of(operation), a, b});
                }
                new (self) SizeTable(symbols, std::move(made), std::move(results));
            },
            "symbols"_a, "instructions"_a, "results"_a,
            "symbols: their number. instructions: (operation, operand, operand). Operands are numbers of earlier "
            "instructions; that of a constant is its value, and that of a symbol its number. results: the instruction "
            "of each entry.")
        .def("values", &SizeTable::values, "symbols"_a,
             "Return the value of each entry. Raise Error for a division by zero, for sizes that do not broadcast, and "
             "if a value does not fit in 64 bits.");
}

}  // namespace graphkit
