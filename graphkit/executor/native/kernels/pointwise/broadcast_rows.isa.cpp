// Functions on broadcast rows (see broadcast_rows_table.h), for the instruction set of this translation unit.
#include "kernels/pointwise/broadcast_rows_table.h"

#include <algorithm>
#include <tuple>

#include "kernels/pointwise/pointwise_functions.h"
#include "simd/aligned.h"
#include "simd/bytes.h"
#include "simd/prefetch.h"

namespace graphkit {
namespace {

template <typename T>
inline Vector<T> load_some(const T* from, std::int64_t count) {
    if constexpr (sizeof(T) < 4) {
        return load_narrow_part(from, count);
    } else {
        return load_part(from, count, T{});
    }
}

template <typename T>
inline void store_some(T* to, Vector<T> v, std::int64_t count) {
    if constexpr (sizeof(T) < 4) {
        store_narrow_part<T>(to, v, count);
    } else {
        store_part<T>(to, v, count);
    }
}

// A row of elements that are loaded vector by vector.
template <typename T>
struct LoadedRow {
    const T* at;

    explicit LoadedRow(const std::byte* data) : at(reinterpret_cast<const T*>(data)) {}
    Vector<T> whole(std::int64_t i) const { return load(at + i); }
    Vector<T> part(std::int64_t i, std::int64_t count) const { return load_some(at + i, count); }
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
        store_some<T>(y, F::template apply<T>(x.part(0, i)...), i);
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
        store_some<T>(y + i, F::template apply<T>(x.part(i, size - i)...), size - i);
    }
}

// Longest row, in bytes, that is repeated in a buffer.
constexpr std::int64_t kRepeatedBytes = 2048;

// A row that is repeated: vectors may begin anywhere in it, and continue with its first elements.
template <typename T>
struct RepeatedRow {
    alignas(kVectorBytes) T elements[kRepeatedBytes / sizeof(T) + kLanes<T>];

    RepeatedRow(const std::byte* data, std::int64_t size) {
        const T* const from = reinterpret_cast<const T*>(data);
        for (std::int64_t i = 0; i < size; ++i) {
            elements[i] = from[i];
        }
        for (std::int64_t i = 0; i < kLanes<T>; ++i) {
            elements[size + i] = from[i];
        }
    }
};

// Computes `rows` contiguous rows of one operand with the same row of the other as one long row. `size` is at least
// the number of lanes.
template <typename F, typename T, bool RepeatsFirst>
void compute_repeated(T* y, const T* x, const std::byte* repeated, std::int64_t rows, std::int64_t size) {
    const RepeatedRow<T> row(repeated, size);
    const std::int64_t total = rows * size;
    const auto combined = [&](Vector<T> v, std::int64_t column) {
        const Vector<T> other = load(row.elements + column);
        return RepeatsFirst ? F::template apply<T>(other, v) : F::template apply<T>(v, other);
    };
    std::int64_t i = before_aligned(y, total);
    if (i != 0) {
        store_some<T>(y, combined(load_some(x, i), 0), i);
    }
    std::int64_t column = i % size;
    const auto next = [&] {
        column += kLanes<T>;
        column = column >= size ? column - size : column;
    };
    while (i + 2 * kLanes<T> <= total) {
        const std::int64_t end = std::min(total, i + kPiece<T>);
        prefetch_page(y + i);
        prefetch_page(x + i);
        for (; i + 2 * kLanes<T> <= end; i += 2 * kLanes<T>) {
            const Vector<T> first = combined(load(x + i), column);
            next();
            const Vector<T> second = combined(load(x + i + kLanes<T>), column);
            next();
            store(y + i, first);
            store(y + i + kLanes<T>, second);
        }
    }
    for (; i < total; i += kLanes<T>) {
        const std::int64_t some = std::min(kLanes<T>, total - i);
        if (some == kLanes<T>) {
            store(y + i, combined(load(x + i), column));
        } else {
            store_some<T>(y + i, combined(load_some(x + i, some), column), some);
        }
        next();
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
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
    constexpr std::int64_t kFewRows = 4;
    const bool repeats = !x[0].equal && !x[1].equal && rows >= kFewRows && size >= kLanes<T> &&
                         size * kSize <= kRepeatedBytes && x[0].stride + x[1].stride == size * kSize;
    if (repeats && x[0].stride == 0) {
        compute_repeated<F, T, true>(reinterpret_cast<T*>(y), reinterpret_cast<const T*>(x[1].data), x[0].data, rows,
                                     size);
    } else if (repeats && x[1].stride == 0) {
        compute_repeated<F, T, false>(reinterpret_cast<T*>(y), reinterpret_cast<const T*>(x[0].data), x[1].data, rows,
                                      size);
    } else if (x[0].equal) {
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

// A comparison of bytes that returns 0 or 1.
template <typename F>
struct TruthOf {
    template <typename T>
    static inline Vector<T> apply(Vector<T> a, Vector<T> b) {
        return bit_cast<Vector<T>>(F::template apply<T>(a, b)) & T{1};
    }
};

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
    constexpr void bits(ElementType type) {
        at(Opcode::bit_and, type) = &binary_rows<functions::BitAnd, T>;
        at(Opcode::bit_or, type) = &binary_rows<functions::BitOr, T>;
        at(Opcode::bit_xor, type) = &binary_rows<functions::BitXor, T>;
    }

    // For bytes only: rows of operands and results have equally large elements.
    template <typename T>
    constexpr void comparisons(ElementType type) {
        static_assert(sizeof(T) == 1);
        at(Opcode::equal, type) = &binary_rows<TruthOf<functions::Equal>, T>;
        at(Opcode::not_equal, type) = &binary_rows<TruthOf<functions::NotEqual>, T>;
        at(Opcode::less, type) = &binary_rows<TruthOf<functions::Less>, T>;
        at(Opcode::less_equal, type) = &binary_rows<TruthOf<functions::LessEqual>, T>;
    }

    template <typename T>
    constexpr void extremes(ElementType type) {
        at(Opcode::minimum, type) = &binary_rows<functions::Minimum, T>;
        at(Opcode::maximum, type) = &binary_rows<functions::Maximum, T>;
    }

    template <typename T>
    constexpr void integers(ElementType is_signed, ElementType is_unsigned) {
        for (const ElementType type : {is_signed, is_unsigned}) {
            numbers<std::make_unsigned_t<T>>(type);
            bits<std::make_unsigned_t<T>>(type);
        }
        extremes<T>(is_signed);
        extremes<std::make_unsigned_t<T>>(is_unsigned);
    }

    template <typename T>
    constexpr void floats(ElementType type) {
        numbers<T>(type);
        at(Opcode::mul_add, type) = &ternary_rows<functions::MulAdd, T>;
        at(Opcode::div, type) = &binary_rows<functions::Div, T>;
        extremes<T>(type);
    }
};

constexpr BroadcastRowsTable make_table() {
    TableBuilder builder;
    builder.floats<float>(ElementType::f32);
    builder.floats<double>(ElementType::f64);
    builder.integers<std::int8_t>(ElementType::i8, ElementType::u8);
    builder.integers<std::int16_t>(ElementType::i16, ElementType::u16);
    builder.integers<std::int32_t>(ElementType::i32, ElementType::u32);
    builder.integers<std::int64_t>(ElementType::i64, ElementType::u64);
    builder.bits<std::uint8_t>(ElementType::boolean);
    builder.comparisons<std::int8_t>(ElementType::i8);
    builder.comparisons<std::uint8_t>(ElementType::u8);
    builder.comparisons<std::uint8_t>(ElementType::boolean);
    return builder.table;
}

}  // namespace

GRAPHKIT_ISA_DEFINE(BroadcastRowsTable, broadcast_rows_table) = make_table();

}  // namespace graphkit
