#include "c_interface/batch_programs.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "c_interface/saved_program.h"

namespace graphkit {
namespace {

// The rows are along this axis, so that those of a part lie one after another.
constexpr std::int64_t kRowAxis = 0;

bool has_rows(std::int64_t axis) {
    return axis == kRowAxis;
}

// Whether two shapes differ only in the rows.
bool equal_besides(std::int64_t axis, const Dims& shape, const std::int64_t* other) {
    const std::size_t skipped = has_rows(axis) ? 1 : 0;
    return shape.size() == skipped || std::equal(shape.begin() + skipped, shape.end(), other + skipped);
}

void check_ports(const SavedPorts& ports, const std::vector<std::int64_t>& axes) {
    if (axes.size() != ports.size()) {
        throw NativeError("the batch has axes of another number of inputs or outputs");
    }
    for (std::size_t i = 0; i < ports.size(); ++i) {
        if (axes[i] != -1 && (axes[i] != kRowAxis || ports[i].shape.empty())) {
            throw NativeError("'" + ports[i].name + "' has no batch axis " + std::to_string(axes[i]));
        }
    }
}

// The bytes of a row.
std::size_t row_bytes(const SavedPort& port) {
    return port.bytes / static_cast<std::size_t>(port.shape[kRowAxis]);
}

using Scratch = std::vector<std::byte>;

}  // namespace

BatchPrograms::BatchPrograms(BatchAxes axes, const Programs& programs) : axes_(std::move(axes)), programs_(programs) {
    check_axes();
    for (std::size_t i = 0; i < programs_.size(); ++i) {
        add(i);
    }
    for (Group& group : groups_) {
        std::stable_sort(group.begin(), group.end(), [](const Runs& a, const Runs& b) { return a.rows > b.rows; });
        check_group(group);
    }
}

void BatchPrograms::check_axes() const {
    check_ports(programs_[0]->inputs(), axes_.inputs);
    check_ports(programs_[0]->outputs(), axes_.outputs);
    if (std::none_of(axes_.inputs.begin(), axes_.inputs.end(), has_rows) ||
        !std::all_of(axes_.outputs.begin(), axes_.outputs.end(), has_rows)) {
        throw NativeError("the batch has no axis in the inputs, or not in each output");
    }
}

std::int64_t BatchPrograms::rows_of(std::size_t program) const {
    const SavedPorts& inputs = programs_[program]->inputs();
    const auto batched = std::find_if(axes_.inputs.begin(), axes_.inputs.end(), has_rows);
    return inputs[static_cast<std::size_t>(batched - axes_.inputs.begin())].shape[kRowAxis];
}

bool BatchPrograms::is_alike(std::size_t program, ShapeList inputs) const {
    const SavedPorts& known = programs_[program]->inputs();
    for (std::size_t i = 0; i < known.size(); ++i) {
        if (!equal_besides(axes_.inputs[i], known[i].shape, inputs[i])) {
            return false;
        }
    }
    return true;
}

void BatchPrograms::add(std::size_t program) {
    const SavedPorts& inputs = programs_[program]->inputs();
    const std::int64_t rows = rows_of(program);
    std::vector<const std::int64_t*> shapes;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        shapes.push_back(inputs[i].shape.data());
        if (has_rows(axes_.inputs[i]) && inputs[i].shape[kRowAxis] != rows) {
            throw NativeError("the inputs of a program have different numbers of rows");
        }
    }
    for (const SavedPort& output : programs_[program]->outputs()) {
        if (output.shape[kRowAxis] != rows) {
            throw NativeError("'" + output.name + "' has another number of rows than the inputs");
        }
    }
    if (rows == 0) {
        return;  // no part of a batch
    }
    for (Group& group : groups_) {
        if (is_alike(group[0].program, shapes.data())) {
            group.push_back({program, rows, 0, 0});
            return;
        }
    }
    groups_.push_back({{program, rows, 0, 0}});
}

// Rows of the outputs must have equal sizes, because parts write to one array.
void BatchPrograms::check_group(const Group& group) const {
    const SavedPorts& first = programs_[group[0].program]->outputs();
    for (const Runs& each : group) {
        const SavedPorts& others = programs_[each.program]->outputs();
        for (std::size_t i = 0; i < first.size(); ++i) {
            if (!equal_besides(axes_.outputs[i], first[i].shape, others[i].shape.data())) {
                throw NativeError("'" + first[i].name + "' has rows of different sizes");
            }
        }
    }
}

std::int64_t BatchPrograms::common_rows(ShapeList inputs) const {
    const SavedPorts& known = programs_[0]->inputs();
    std::optional<std::size_t> first;
    for (std::size_t i = 0; i < known.size(); ++i) {
        if (!has_rows(axes_.inputs[i])) {
            continue;
        }
        const std::int64_t rows = inputs[i][kRowAxis], expected = inputs[first.value_or(i)][kRowAxis];
        if (rows < 0) {
            throw std::invalid_argument("input '" + known[i].name + "' has " + std::to_string(rows) + " rows");
        }
        if (rows != expected) {
            throw std::invalid_argument("input '" + known[*first].name + "' has " + std::to_string(expected) +
                                        " rows, but input '" + known[i].name + "' has " + std::to_string(rows));
        }
        first = first.value_or(i);
    }
    return inputs[*first][kRowAxis];
}

std::optional<BatchPrograms::Plan> BatchPrograms::plan(ShapeList inputs) const {
    const auto group = std::find_if(groups_.begin(), groups_.end(),
                                    [&](const Group& each) { return is_alike(each[0].program, inputs); });
    if (group == groups_.end()) {
        return std::nullopt;
    }
    Plan plan;
    plan.rows = common_rows(inputs);
    plan.alike = (*group)[0].program;
    // A run counts as one row more than it has, for what does not depend on the rows, such as reading weights. `whole`
    // are as many runs as fit of each program down to the present one; the rest may also fill one run in part.
    const auto cost = [](std::int64_t rows, std::int64_t runs) {
        return static_cast<double>(runs) * (static_cast<double>(rows) + 1);
    };
    std::vector<Runs> whole;
    double spent = 0, least = std::numeric_limits<double>::infinity();
    std::int64_t rest = plan.rows;
    for (const Runs& each : *group) {
        const std::int64_t number = rest / each.rows;
        rest -= number * each.rows;
        spent += cost(each.rows, number);
        whole.push_back({each.program, each.rows, number, each.rows});
        const double total = spent + (rest > 0 ? cost(each.rows, 1) : 0);
        if (total <= least) {  // with equal costs, fewer rows are computed in vain
            least = total;
            plan.runs = whole;
            if (rest > 0) {
                plan.runs.back().number += 1;
                plan.runs.back().last = rest;
            }
        }
    }
    std::erase_if(plan.runs, [](const Runs& each) { return each.number == 0; });
    return plan;
}

void BatchPrograms::run_rows(std::size_t program, std::int64_t first, std::int64_t rows, const void* const* inputs,
                             void* const* outputs, const RunLimits& limits) const {
    SavedProgram& part = *programs_[program];
    const auto all = static_cast<std::size_t>(rows_of(program)), used = static_cast<std::size_t>(rows);
    std::vector<const void*> given(inputs, inputs + part.inputs().size());
    std::vector<void*> made;
    std::vector<Scratch> padded, spare;
    for (std::size_t i = 0; i < given.size(); ++i) {
        if (!has_rows(axes_.inputs[i]) || given[i] == nullptr) {
            continue;
        }
        const std::size_t row = row_bytes(part.inputs()[i]);
        const auto* from = static_cast<const std::byte*>(given[i]) + static_cast<std::size_t>(first) * row;
        given[i] = from;
        if (used < all) {  // repeats the last row, which is valid for all operators
            Scratch& copy = padded.emplace_back(all * row);
            for (std::size_t k = 0; k < all; ++k) {
                std::copy_n(from + std::min(k, used - 1) * row, row, copy.data() + k * row);
            }
            given[i] = copy.data();
        }
    }
    for (std::size_t i = 0; i < part.outputs().size(); ++i) {
        const std::size_t row = row_bytes(part.outputs()[i]);
        auto* to = static_cast<std::byte*>(outputs[i]);
        made.push_back(to == nullptr ? nullptr
                       : used < all  ? spare.emplace_back(all * row).data()
                                     : to + static_cast<std::size_t>(first) * row);
    }
    part.run(given.data(), made.data(), limits);
    for (std::size_t i = 0; used < all && i < made.size(); ++i) {
        if (made[i] != nullptr) {
            const std::size_t row = row_bytes(part.outputs()[i]);
            std::copy_n(static_cast<const std::byte*>(made[i]), used * row,
                        static_cast<std::byte*>(outputs[i]) + static_cast<std::size_t>(first) * row);
        }
    }
}

void BatchPrograms::run(const Plan& plan, const void* const* inputs, void* const* outputs,
                        const RunLimits& limits) const {
    std::int64_t first = 0;
    for (const Runs& each : plan.runs) {
        for (std::int64_t i = 0; i < each.number; ++i) {
            const std::int64_t rows = i + 1 < each.number ? each.rows : each.last;
            run_rows(each.program, first, rows, inputs, outputs, limits);
            first += rows;
        }
    }
}

}  // namespace graphkit
