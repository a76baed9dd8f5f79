#include "kernels/quant/integer_product.h"

#include <algorithm>
#include <cstring>

#include "kernels/quant/linear_table.h"
#include "primitives/elements.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// Bytes of packed weights that stay in a core's second-level cache while rows are processed.
constexpr std::int64_t kBlockBytes = 256 << 10;

std::int64_t rounded(std::int64_t value, std::int64_t to) {
    return (value + to - 1) / to * to;
}

// Whether the lines of a kernel are long enough to be read in place. Some terms of the next pixel are then read as
// well, with weights of zero.
bool reads_lines(const IntegerGeometry& g) {
    const std::int64_t line = g.kernel[2] * g.terms;
    return g.windows && g.dilation[2] == 1 && g.x_stride == g.terms && line >= 8;
}

}  // namespace

namespace {

// Iterates over the windows of a convolution.
class WindowWalk {
  public:
    WindowWalk(const IntegerGeometry& geometry, std::int64_t first) : g_(geometry), image_(first) {
        for (int axis = 2; axis >= 0; --axis) {
            at_[axis] = image_ % g_.output[axis];
            image_ /= g_.output[axis];
        }
        place();
    }

    void next() {
        for (int axis = 2; axis >= 0 && ++at_[axis] == g_.output[axis]; --axis) {
            at_[axis] = 0;
            image_ += axis == 0 ? 1 : 0;
        }
        place();
    }

    // The position where the window begins along an axis.
    std::int64_t start(int axis) const { return start_[axis]; }
    bool is_inside() const { return inside_; }
    // The first tap of a window that is inside of x.
    const std::uint8_t* origin(const std::uint8_t* x) const {
        const std::int64_t line = (image_ * g_.input[0] + start_[0]) * g_.input[1] + start_[1];
        return x + (line * g_.input[2] + start_[2]) * g_.x_stride;
    }

    // Calls body(the first tap of a line of the kernel, whether x contains the line).
    template <typename Body>
    void for_each_line(Body&& body, const std::uint8_t* x) const {
        for (std::int64_t i = 0; i < g_.kernel[0]; ++i) {
            const std::int64_t deep = start_[0] + i * g_.dilation[0];
            for (std::int64_t j = 0; j < g_.kernel[1]; ++j) {
                const std::int64_t high = start_[1] + j * g_.dilation[1];
                const bool there = inside_ || (deep >= 0 && deep < g_.input[0] && high >= 0 && high < g_.input[1]);
                const std::int64_t line = ((image_ * g_.input[0] + deep) * g_.input[1] + high) * g_.input[2];
                body(x + (line + start_[2]) * g_.x_stride, there);
            }
        }
    }

  private:
    void place() {
        inside_ = true;
        for (int axis = 0; axis < 3; ++axis) {
            start_[axis] = at_[axis] * g_.stride[axis] - g_.pad[axis];
            inside_ &= start_[axis] >= 0 && start_[axis] + (g_.kernel[axis] - 1) * g_.dilation[axis] < g_.input[axis];
        }
    }

    const IntegerGeometry& g_;
    std::int64_t image_;
    std::int64_t at_[3];
    std::int64_t start_[3];
    bool inside_ = false;
};

}  // namespace

void window_rows(const IntegerGeometry& g, const std::uint8_t* x, const std::uint8_t* padding, std::int64_t first,
                 std::int64_t count, std::int64_t row_step, std::int64_t tap_step, const std::uint8_t** rows) {
    const std::int64_t step = g.dilation[2] * g.x_stride;
    WindowWalk walk(g, first);
    for (std::int64_t r = 0; r < count; ++r, walk.next()) {
        const std::uint8_t** to = rows + r * row_step;
        if (walk.is_inside()) {
            const std::uint8_t* origin = walk.origin(x);
            for (const std::int64_t offset : g.tap_offsets) {
                *to = origin + offset;
                to += tap_step;
            }
            continue;
        }
        walk.for_each_line(
            [&](const std::uint8_t* line, bool in_line) {
                for (std::int64_t k = 0; k < g.kernel[2]; ++k) {
                    const std::int64_t wide = walk.start(2) + k * g.dilation[2];
                    const bool inside = walk.is_inside() || (in_line && wide >= 0 && wide < g.input[2]);
                    *to = inside ? line + k * step : padding;
                    to += tap_step;
                }
            },
            x);
    }
}

// The memory and numbers of one run.
struct IntegerProduct::Run {
    const std::uint8_t* x;
    const std::uint8_t* x_end;
    const std::int8_t* w;
    ColumnNumbers numbers;
    const std::uint8_t* padding;
    std::byte* y;
};

IntegerProduct::IntegerProduct(const char* name, IntegerOperands operands, const TensorSpec& y,
                               IntegerGeometry geometry, IntegerOrder order, float alpha, bool pack_weights,
                               int threads)
    : Kernel(name, threads > 0 ? threads : default_threads()),
      operands_(std::move(operands)),
      geometry_(std::move(geometry)),
      order_(std::move(order)),
      functions_(integer_functions()),
      dot_(has_dot_products() && functions_.dot_product != nullptr),
      pack_weights_(pack_weights),
      dynamic_(operands_.spec(Part::x).type == ElementType::f32),
      gathers_(geometry_.terms % kTerms != 0),
      lines_(gathers_ && reads_lines(geometry_)) {
    gathers_ = gathers_ && !lines_;
    inputs_ = operands_.specs();
    outputs_ = {y};
    const IntegerGeometry& g = geometry_;
    plan_ = {g.groups, g.columns, rounded(g.columns, functions_.lanes), g.taps * g.terms, g.shared, alpha};
    walk_taps_ = gathers_ ? 1 : lines_ ? g.kernel[0] * g.kernel[1] : g.taps;
    quads_ = gathers_ ? rounded(g.taps * g.terms, kTerms) / kTerms
             : lines_ ? rounded(g.kernel[2] * g.terms, kTerms) / kTerms
                      : g.terms / kTerms;
    const std::int64_t fitting = kBlockBytes / std::max<std::int64_t>(panel_bytes(), 1) / 4 * 4;
    block_columns_ = std::max<std::int64_t>(fitting, 4) * functions_.lanes;
    blocks_ = (g.columns + block_columns_ - 1) / block_columns_;
    strips_ = (g.rows + kBlockRows - 1) / kBlockRows;
    parts_ = g.x_begin.empty() ? g.groups : static_cast<std::int64_t>(g.x_begin.size());
    // Without columns there is nothing to pack.
    pack_weights_ = pack_weights_ && packed_bytes(operands_.place(Part::w)) > 0;
    lay_out();
}

void IntegerProduct::lay_out() {
    const auto bytes_of = [](const TensorSpec& spec) { return aligned(static_cast<std::size_t>(count(spec.shape))); };
    Scratch& s = scratch_;
    s.numbers = 0;
    s.padding = plan_.bytes();
    s.x = s.padding + aligned(static_cast<std::size_t>(geometry_.terms * geometry_.kernel[2] + kTerms));
    s.y = s.x + (order_.x || dynamic_ ? bytes_of(inputs_[static_cast<std::size_t>(operands_.place(Part::x))]) : 0);
    s.w = s.y + (order_.y ? bytes_of(outputs_[0]) * size_of(outputs_[0].type) : 0);
    s.threads = s.w + (pack_weights_ ? 0 : packed_bytes(operands_.place(Part::w)));
    const auto pointers = static_cast<std::size_t>(geometry_.taps * kBlockRows) * sizeof(void*);
    const auto gathered = gathers_ || lines_ ? static_cast<std::size_t>(kBlockRows * walk_taps_ * quads_ * kTerms) : 0;
    s.of_thread = aligned(pointers) + aligned(gathered) + aligned(kBlockRows * sizeof(void*));
    s.total = s.threads + s.of_thread * static_cast<std::size_t>(threads());
}

std::vector<int> IntegerProduct::packed_inputs() const {
    return pack_weights_ ? std::vector<int>{operands_.place(Part::w)} : std::vector<int>{};
}

// The sums of each column's weights come first, then the panels.
std::size_t IntegerProduct::packed_bytes(int) const {
    const auto sums = aligned(static_cast<std::size_t>(plan_.groups * plan_.padded) * sizeof(std::int32_t));
    return sums + static_cast<std::size_t>(plan_.groups * plan_.padded / functions_.lanes * panel_bytes());
}

std::string IntegerProduct::packed_layout(int) const {
    const IntegerGeometry& g = geometry_;
    return "panels of bytes:" + std::to_string(functions_.lanes) +
           (gathers_ ? " gathered"
            : lines_ ? " lines"
                     : "") +
           to_string({g.groups, g.taps, g.terms, g.columns, g.w_group, g.w_tap, g.w_term, g.w_column}) +
           std::to_string(operands_.w_flip());
}

std::string IntegerProduct::implementation() const {
    return std::string("bytes:") + isa_name() + (dot_ ? "_vnni" : "");
}

void IntegerProduct::pack(int, const void* plain, void* packed) const {
    const std::int64_t panels = plan_.padded / functions_.lanes;
    if (geometry_.taps == 1 && geometry_.w_column == 1 && !lines_) {
        const std::int64_t strips = (panels + kPackedTogether - 1) / kPackedTogether;
        const double strip_cost = 0.1 * static_cast<double>(kPackedTogether * panel_bytes());
        parallel_for(threads(), plan_.groups * strips, strip_cost, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) {
                const std::int64_t first = i % strips * kPackedTogether;
                pack_rows(static_cast<const std::int8_t*>(plain), static_cast<std::byte*>(packed), i / strips, first,
                          std::min(kPackedTogether, panels - first));
            }
        });
        return;
    }
    const double cost = 0.5 * static_cast<double>(panel_bytes());
    parallel_for(threads(), plan_.groups * panels, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            pack_columns(static_cast<const std::int8_t*>(plain), static_cast<std::byte*>(packed), i / panels,
                         i % panels);
        }
    });
}

// Packs panels [panel, panel + panels) of a matrix whose rows are contiguous.
void IntegerProduct::pack_rows(const std::int8_t* w, std::byte* packed, std::int64_t group, std::int64_t panel,
                               std::int64_t panels) const {
    const IntegerGeometry& g = geometry_;
    const std::int64_t lanes = functions_.lanes;
    const auto all_sums = aligned(static_cast<std::size_t>(plan_.groups * plan_.padded) * sizeof(std::int32_t));
    auto* const sums = reinterpret_cast<std::int32_t*>(packed) + group * plan_.padded + panel * lanes;
    auto* const to =
        reinterpret_cast<std::int8_t*>(packed + all_sums) + (group * (plan_.padded / lanes) + panel) * panel_bytes();
    functions_.pack(w + group * g.w_group + panel * lanes, g.w_term, g.terms, g.columns - panel * lanes, panels,
                    operands_.w_flip(), to, sums);
}

void IntegerProduct::pack_columns(const std::int8_t* w, std::byte* packed, std::int64_t group,
                                  std::int64_t panel) const {
    const IntegerGeometry& g = geometry_;
    const std::int64_t lanes = functions_.lanes;
    const std::int64_t panels = plan_.padded / lanes;
    const auto all_sums = aligned(static_cast<std::size_t>(plan_.groups * plan_.padded) * sizeof(std::int32_t));
    auto* sums = reinterpret_cast<std::int32_t*>(packed) + group * plan_.padded + panel * lanes;
    auto* to = reinterpret_cast<std::int8_t*>(packed + all_sums) + (group * panels + panel) * panel_bytes();
    std::memset(to, 0, static_cast<std::size_t>(panel_bytes()));
    const std::int64_t there = std::min(lanes, g.columns - panel * lanes);
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
        std::int32_t sum = 0;
        const std::int8_t* column = w + group * g.w_group + (panel * lanes + lane) * g.w_column;
        for (std::int64_t tap = 0; lane < there && tap < g.taps; ++tap) {
            for (std::int64_t term = 0; term < g.terms; ++term) {
                const auto value =
                    static_cast<std::int8_t>(column[tap * g.w_tap + term * g.w_term] ^ operands_.w_flip());
                const std::int64_t place =
                    lines_ ? tap / g.kernel[2] * quads_ * kTerms + tap % g.kernel[2] * g.terms + term
                           : tap * g.terms + term;
                to[(place / kTerms * lanes + lane) * kTerms + place % kTerms] = value;
                sum += value;
            }
        }
        sums[lane] = sum;
    }
}

void IntegerProduct::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    if (count(outputs_[0].shape) == 0) {
        return;
    }
    Run run{};
    const void* x = operands_.get(Part::x, inputs);
    std::optional<FoundRange> found;
    if (dynamic_) {
        const std::int64_t size = count(operands_.spec(Part::x).shape);
        auto* bytes = reinterpret_cast<std::uint8_t*>(scratch + scratch_.x);
        found = quantise_by_range(threads(), static_cast<const float*>(x), size, bytes);
        x = bytes;
    } else if (order_.x) {
        order_.x->run(threads(), x, scratch + scratch_.x);
        x = scratch + scratch_.x;
    }
    const void* w = operands_.get(Part::w, inputs);
    if (!pack_weights_) {
        pack(operands_.place(Part::w), w, scratch + scratch_.w);
        w = scratch + scratch_.w;
    }
    const auto sums = aligned(static_cast<std::size_t>(plan_.groups * plan_.padded) * sizeof(std::int32_t));
    run.x = static_cast<const std::uint8_t*>(x);
    run.x_end = run.x + count(operands_.spec(Part::x).shape);
    run.w = static_cast<const std::int8_t*>(w) + sums;
    run.numbers = column_numbers(operands_, plan_, inputs, static_cast<const std::int32_t*>(w), outputs_[0].type,
                                 scratch + scratch_.numbers, found ? &*found : nullptr);
    auto* padding = reinterpret_cast<std::uint8_t*>(scratch + scratch_.padding);
    std::memset(padding, run.numbers.x_zero, static_cast<std::size_t>(geometry_.terms * geometry_.kernel[2] + kTerms));
    run.padding = padding;
    run.y = order_.y ? scratch + scratch_.y : static_cast<std::byte*>(outputs[0]);
    parallel_for(threads(), parts_ * blocks_ * strips_, nanoseconds(), [&](std::int64_t begin, std::int64_t end) {
        std::byte* own = scratch + scratch_.threads + scratch_.of_thread * static_cast<std::size_t>(thread_number());
        for (std::int64_t item = begin; item < end; ++item) {
            block(run, item, own);
        }
    });
    if (order_.y) {
        order_.y->run(threads(), run.y, outputs[0]);
    }
}

// Estimated nanoseconds of one item of the loop: a tile of rows with the columns of a block.
double IntegerProduct::nanoseconds() const {
    const double products = static_cast<double>(std::min(block_columns_, plan_.padded) * walk_taps_ * quads_ * kTerms) *
                            static_cast<double>(std::min(kBlockRows, geometry_.rows));
    return 10 + products / (dot_ ? 150 : 4 * static_cast<double>(functions_.lanes));
}

void IntegerProduct::block(const Run& run, std::int64_t item, std::byte* own) const {
    const IntegerGeometry& g = geometry_;
    const std::int64_t part = item / (blocks_ * strips_);
    const std::int64_t column = item / strips_ % blocks_ * block_columns_;
    const std::int64_t first = item % strips_ * kBlockRows;
    const std::int64_t rows = std::min(kBlockRows, g.rows - first);
    const std::int64_t matrix = g.w_matrix.empty() ? part : g.w_matrix[static_cast<std::size_t>(part)];
    auto** pointers = reinterpret_cast<const std::uint8_t**>(own);
    if (lines_) {
        line_rows(run, first, rows, own);
    } else if (g.windows && gathers_) {
        gather_windows(run, part, first, rows, own);
    } else if (g.windows) {
        window_rows(g, run.x + part * g.terms, run.padding, first, rows, 1, kBlockRows, pointers);
    } else {
        const std::uint8_t* x = run.x + g.x_begin[static_cast<std::size_t>(part)] + first * g.x_stride;
        for (std::int64_t r = 0; r < rows; ++r) {
            pointers[r] = x + r * g.x_stride;
        }
    }
    if (gathers_ && !g.windows) {
        gather(run, pointers, rows, own);
    }
    const std::int64_t begin = g.y_begin.empty() ? part * g.columns : g.y_begin[static_cast<std::size_t>(part)];
    const ElementType type = outputs_[0].type;
    const std::int64_t at = matrix * plan_.padded + column;
    const ColumnNumbers& n = run.numbers;
    IntegerBlock block{};
    block.rows = gathers_ ? reinterpret_cast<const std::uint8_t**>(gathered_pointers(own)) : pointers;
    block.row_count = rows;
    block.taps = walk_taps_;
    block.quads = quads_;
    block.flip = operands_.x_flip();
    block.panels = run.w + at / functions_.lanes * panel_bytes();
    block.columns = std::min(block_columns_, g.columns - column);
    block.offsets = n.offsets + at;
    block.zeros = n.zeros == nullptr ? nullptr : n.zeros + at;
    block.factors = n.factors + at;
    block.bias = n.bias == nullptr ? nullptr : n.bias + at;
    block.result = type == ElementType::i32   ? IntegerResult::sums
                   : type == ElementType::f32 ? IntegerResult::reals
                                              : IntegerResult::bytes;
    block.bytes = n.bytes;
    block.y = run.y + (begin + first * g.y_stride + column) * static_cast<std::int64_t>(size_of(type));
    block.stride = g.y_stride;
    (dot_ ? functions_.dot_product : functions_.product)(block);
}

// Gathers rows, padded to whole groups of four. If sums of bytes are not needed, a row is read in place, with the first
// bytes of the next row: their weights are zero.
void IntegerProduct::gather(const Run& run, const std::uint8_t** rows, std::int64_t count, std::byte* own) const {
    const std::int64_t length = quads_ * kTerms;
    const auto pointers = aligned(static_cast<std::size_t>(geometry_.taps * kBlockRows) * sizeof(void*));
    auto* gathered = reinterpret_cast<std::uint8_t*>(own + pointers);
    auto** made = reinterpret_cast<const std::uint8_t**>(gathered_pointers(own));
    for (std::int64_t r = 0; r < count; ++r) {
        if (run.numbers.zeros == nullptr && length <= run.x_end - rows[r]) {
            made[r] = rows[r];
            continue;
        }
        std::uint8_t* to = gathered + r * length;
        made[r] = to;
        std::memcpy(to, rows[r], static_cast<std::size_t>(geometry_.terms));
        std::memset(to + geometry_.terms, operands_.x_flip(), static_cast<std::size_t>(length - geometry_.terms));
    }
}

// Gathers one line of a window that begins at `wide`, padded to whole groups of four. Returns its end.
std::uint8_t* IntegerProduct::gather_line(const Run& run, const std::uint8_t* line, std::int64_t wide,
                                          std::uint8_t* to) const {
    const IntegerGeometry& g = geometry_;
    const auto terms = static_cast<std::size_t>(g.terms);
    for (std::int64_t k = 0; k < g.kernel[2]; ++k) {
        const bool inside = line != nullptr && wide + k >= 0 && wide + k < g.input[2];
        std::memcpy(to + k * g.terms, inside ? line + k * g.x_stride : run.padding, terms);
    }
    const std::int64_t filled = g.kernel[2] * g.terms;
    std::memset(to + filled, operands_.x_flip(), static_cast<std::size_t>(quads_ * kTerms - filled));
    return to + quads_ * kTerms;
}

void IntegerProduct::line_rows(const Run& run, std::int64_t first, std::int64_t count, std::byte* own) const {
    const IntegerGeometry& g = geometry_;
    const std::int64_t length = quads_ * kTerms;
    auto** rows = reinterpret_cast<const std::uint8_t**>(own);
    auto* to =
        reinterpret_cast<std::uint8_t*>(own + aligned(static_cast<std::size_t>(g.taps * kBlockRows) * sizeof(void*)));
    // The sums of a row's bytes must not include bytes of the next pixel.
    const bool in_place = run.numbers.zeros == nullptr;
    WindowWalk walk(g, first);
    for (std::int64_t r = 0; r < count; ++r, walk.next()) {
        const std::int64_t wide = walk.start(2);
        const bool whole = in_place && wide >= 0 && wide + g.kernel[2] <= g.input[2];
        const std::uint8_t** row = rows + r;
        const std::uint8_t* origin = walk.is_inside() ? walk.origin(run.x) : nullptr;
        if (in_place && origin != nullptr && origin + g.line_offsets.back() + length <= run.x_end) {
            for (const std::int64_t offset : g.line_offsets) {
                *row = origin + offset;
                row += kBlockRows;
            }
            continue;
        }
        const auto line_of = [&](const std::uint8_t* line, bool in_line) {
            if (in_line && whole && line + length <= run.x_end) {
                *row = line;
            } else if (!in_line && in_place) {
                *row = run.padding;
            } else {
                *row = to;
                to = gather_line(run, in_line ? line : nullptr, wide, to);
            }
            row += kBlockRows;
        };
        walk.for_each_line(line_of, run.x);
    }
}

void IntegerProduct::gather_windows(const Run& run, std::int64_t group, std::int64_t first, std::int64_t count,
                                    std::byte* own) const {
    const IntegerGeometry& g = geometry_;
    const std::int64_t length = quads_ * kTerms;
    const auto pointers = aligned(static_cast<std::size_t>(g.taps * kBlockRows) * sizeof(void*));
    auto* gathered = reinterpret_cast<std::uint8_t*>(own + pointers);
    auto** made = reinterpret_cast<const std::uint8_t**>(gathered_pointers(own));
    const auto terms = static_cast<std::size_t>(g.terms);
    // The taps of a line are contiguous.
    const bool joins = g.dilation[2] == 1 && g.x_stride == g.terms;
    const std::size_t line_bytes = static_cast<std::size_t>(g.kernel[2]) * terms;
    // Padding to whole groups of four; lines overwrite it.
    const auto fill = static_cast<std::uint32_t>(operands_.x_flip() * 0x01010101U);
    WindowWalk walk(g, first);
    for (std::int64_t r = 0; r < count; ++r, walk.next()) {
        std::uint8_t* to = gathered + r * length;
        made[r] = to;
        std::memcpy(to + length - kTerms, &fill, kTerms);
        const std::int64_t wide = walk.start(2);
        const bool whole = joins && wide >= 0 && wide + g.kernel[2] <= g.input[2];
        const auto line_of = [&](const std::uint8_t* line, bool in_line) {
            if (whole && in_line) {
                copy_bytes(reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(line), line_bytes);
            } else {
                for (std::int64_t k = 0; k < g.kernel[2]; ++k) {
                    const std::int64_t at = wide + k * g.dilation[2];
                    const bool inside = in_line && at >= 0 && at < g.input[2];
                    std::memcpy(to + k * g.terms, inside ? line + k * g.dilation[2] * g.x_stride : run.padding, terms);
                }
            }
            to += line_bytes;
        };
        walk.for_each_line(line_of, run.x + group * g.terms);
    }
}

}  // namespace graphkit
