// Functions on broadcast rows (see broadcast_rows_table.h), for the instruction set of this translation unit.
#include "kernels/pointwise/broadcast_rows_table.h"

#include <algorithm>
#include <tuple>

#include "kernels/pointwise/pointwise_functions.h"
#include "simd/aligned.h"
#include "simd/prefetch.h"

namespace graphkit {
namespace {

// A row of elements that are loaded vector by vector.
template <typename T>
struct LoadedRow {
    const T* at;

    explicit LoadedRow(const std::byte* data) : at(reinterpret_cast<const T*>(data)) {}
    Vector<T> whole(std::int64_t i) const { return load(at + i); }
    Vector<T> part(std::int64_t i, std::int64_t count) const { return load_part(at + i, count, T{}); }
    void prefetch(std::int64_t i) const { prefetch_page(at + i); }
};

// A row of equal elements.
template <typename T>
struct EqualRow {
    Vector<T> value;

    explicit EqualRow(const std::byte* data) : value(splat(*reinterpret_cast<const T*>(data))) {}
    Vector<T> whole(std::int64_t) const { return value; }
    Vector<T> part(std::int64_t, std::int64_t) const { return value; }
    void prefetch(std::int64_t) const {}
};

template <typename F, typename T, typename... Rows>
inline void compute_row(T* y, std::int64_t size, Rows... x) {
    const bool is_long = size >= kPiece<T> / 2;
    std::int64_t i = before_aligned(y, size);
    if (!is_long) {
        prefetch_page(y);
        (x.prefetch(0), ...);
    }
    if (i != 0) {
        store_part(y, F::template apply<T>(x.part(0, i)...), i);
    }
    while (i + kLanes<T> <= size) {
        const std::int64_t end = std::min(size, i + kPiece<T>);
        if (is_long) {
            prefetch_page(y + i);
            (x.prefetch(i), ...);
        }
        for (; i + 2 * kLanes<T> <= end; i += 2 * kLanes<T>) {
            const Vector<T> first = F::template apply<T>(x.whole(i)...);
            const Vector<T> second = F::template apply<T>(x.whole(i + kLanes<T>)...);
            store(y + i, first);
            store(y + i + kLanes<T>, second);
        }
        for (; i + kLanes<T> <= end; i += kLanes<T>) {
            store(y + i, F::template apply<T>(x.whole(i)...));
        }
    }
    if (i < size) {
        store_part(y + i, F::template apply<T>(x.part(i, size - i)...), size - i);
    }
}

template <typename F, typename T, template <typename> typename... Row>
inline void compute_rows(std::byte* y, const RowOperand* x, std::int64_t rows, std::int64_t size) {
    for (std::int64_t row = 0; row < rows; ++row) {
        const RowOperand* next = x;
        const auto at = [&] {
            const RowOperand& operand = *next++;
            return operand.data + row * operand.stride;
        };
        // The braces evaluate the operands in order.
        const std::tuple<Row<T>...> operands{Row<T>(at())...};
        std::apply([&](auto... each) { compute_row<F>(reinterpret_cast<T*>(y) + row * size, size, each...); },
                   operands);
    }
}

template <typename F, typename T>
void binary_rows(std::byte* y, const RowOperand* x, std::int64_t rows, std::int64_t size) {
    if (x[0].equal) {
        compute_rows<F, T, EqualRow, LoadedRow>(y, x, rows, size);
    } else if (x[1].equal) {
        compute_rows<F, T, LoadedRow, EqualRow>(y, x, rows, size);
    } else {
        compute_rows<F, T, LoadedRow, LoadedRow>(y, x, rows, size);
    }
}

// As in a batch normalisation: the last operand, and at most one other, may have equal elements.
template <typename F, typename T>
void ternary_rows(std::byte* y, const RowOperand* x, std::int64_t rows, std::int64_t size) {
    if (!x[2].equal) {
        compute_rows<F, T, LoadedRow, LoadedRow, LoadedRow>(y, x, rows, size);
    } else if (x[0].equal) {
        compute_rows<F, T, EqualRow, LoadedRow, EqualRow>(y, x, rows, size);
    } else {
        compute_rows<F, T, LoadedRow, EqualRow, EqualRow>(y, x, rows, size);
    }
}

struct TableBuilder {
    BroadcastRowsTable table{};

    constexpr RowsFunction& at(Opcode opcode, ElementType type) {
        return table.functions[static_cast<std::size_t>(opcode)][static_cast<std::size_t>(type)];
    }

    // Unsigned arithmetic is correct for signed integers, too.
    template <typename T>
    constexpr void numbers(ElementType type) {
        at(Opcode::add, type) = &binary_rows<functions::Add, T>;
        at(Opcode::sub, type) = &binary_rows<functions::Sub, T>;
        at(Opcode::mul, type) = &binary_rows<functions::Mul, T>;
    }

    template <typename T>
    constexpr void floats(ElementType type) {
        numbers<T>(type);
        at(Opcode::mul_add, type) = &ternary_rows<functions::MulAdd, T>;
        at(Opcode::div, type) = &binary_rows<functions::Div, T>;
        at(Opcode::minimum, type) = &binary_rows<functions::Minimum, T>;
        at(Opcode::maximum, type) = &binary_rows<functions::Maximum, T>;
    }
};

constexpr BroadcastRowsTable make_table() {
    TableBuilder builder;
    builder.floats<float>(ElementType::f32);
    builder.floats<double>(ElementType::f64);
    for (const ElementType type : {ElementType::i32, ElementType::u32}) {
        builder.numbers<std::uint32_t>(type);
    }
    for (const ElementType type : {ElementType::i64, ElementType::u64}) {
        builder.numbers<std::uint64_t>(type);
    }
    return builder.table;
}

}  // namespace

GRAPHKIT_ISA_DEFINE(BroadcastRowsTable, broadcast_rows_table) = make_table();

}  // namespace graphkit
