// Encodes columns of strings, each by its own table, and concatenates the results to one matrix of numbers.
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/strings/string_table.h"
#include "runtime/array.h"

namespace graphkit {
namespace {

class ColumnEncoder {
  public:
    // A column: its table, the operand, the column in that operand, the bytes of its result, and an array with a result
    // for each number of the table. None instead of the array: one-hot, float32, zeros for numbers out of range.
    using Column = std::tuple<nb::typed<nb::object, StringTable>, std::size_t, std::size_t, std::size_t, nb::object>;

    // `widths`: for each operand, a matrix of strings, its number of columns.
    ColumnEncoder(const std::vector<Column>& columns, std::vector<std::size_t> widths) : widths_(std::move(widths)) {
        for (const auto& [table, operand, column, bytes, results] : columns) {
            if (operand >= widths_.size() || column >= widths_[operand]) {
                throw nb::value_error("a column is outside of the operands");
            }
            Part part{nb::cast<const StringTable*>(table), operand, column, row_bytes_, bytes, nullptr, 0};
            if (!results.is_none()) {
                const Array array = open_array(results, "results", false);
                part.results = static_cast<const std::byte*>(array.data);
                part.count = bytes == 0 ? 0 : array.bytes / bytes;
            }
            owned_.push_back(nb::borrow(table));
            owned_.push_back(results);
            parts_.push_back(part);
            row_bytes_ += bytes;
        }
    }

    // Writes the encoded columns of `xs`, arrays of strings, to `y`. The GIL must be held. Raises TypeError if an
    // element is not a string.
    void write(const std::vector<nb::object>& xs, nb::handle y) const {
        const Array result = open_array(y, "y", true);
        const std::size_t rows = row_bytes_ == 0 ? 0 : result.bytes / row_bytes_;
        std::vector<PyObject**> strings;
        strings.reserve(xs.size());
        for (std::size_t i = 0; i < xs.size(); ++i) {
            const Objects x = open_objects(xs[i], "x", false);
            if (i >= widths_.size() || x.count != rows * widths_[i]) {
                throw nb::value_error("the operands and the result do not have the same number of rows");
            }
            strings.push_back(x.data);
        }
        if (strings.size() != widths_.size() || result.bytes != rows * row_bytes_) {
            throw nb::value_error("the operands or the result do not fit the columns");
        }
        for (const Part& part : parts_) {
            encode(part, strings[part.operand] + part.column, rows, static_cast<std::byte*>(result.data) + part.offset);
        }
    }

  private:
    struct Part {
        const StringTable* table;
        std::size_t operand, column, offset, bytes;
        const std::byte* results;
        std::size_t count;  // number of results
    };

    void encode(const Part& part, PyObject** strings, std::size_t rows, std::byte* out) const {
        const std::size_t step = widths_[part.operand];
        const float one = 1.0F;
        for (std::size_t i = 0; i < rows; ++i, strings += step, out += row_bytes_) {
            const auto number = static_cast<std::size_t>(part.table->number(*strings));
            if (part.results != nullptr) {
                if (number >= part.count) {
                    throw nb::value_error("a number of the table has no result");
                }
                std::memcpy(out, part.results + number * part.bytes, part.bytes);
                continue;
            }
            std::memset(out, 0, part.bytes);
            if (number < part.bytes / sizeof(float)) {
                std::memcpy(out + number * sizeof(float), &one, sizeof(float));
            }
        }
    }

    std::vector<std::size_t> widths_;
    std::vector<Part> parts_;
    std::vector<nb::object> owned_;  // objects to which the parts point
    std::size_t row_bytes_ = 0;
};

}  // namespace
}  // namespace graphkit

GRAPHKIT_BINDINGS(column_encoder, "string_table") {
    using namespace graphkit;
    nb::class_<ColumnEncoder>(m, "ColumnEncoder",
                              "Encodes columns of strings, each by its own table, and concatenates the results.")
        .def(nb::init<const std::vector<ColumnEncoder::Column>&, std::vector<std::size_t>>(), "columns"_a, "widths"_a)
        .def("write", &ColumnEncoder::write, "xs"_a, "y"_a, "Write a row of results for each row of the operands.");
}
