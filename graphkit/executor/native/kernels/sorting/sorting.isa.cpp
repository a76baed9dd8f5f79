// Positions of extreme elements, and the keys that order elements. The loops are simple, so that the compiler can
// vectorise them.
#include "kernels/sorting/sorting_table.h"
#include "simd/bitwise.h"
#include "simd/narrow_rows.h"

namespace graphkit {
namespace {

// Number of elements of a row that are searched together.
constexpr std::int64_t kSearchBlock = 512;
// For shorter rows, vectors are not worthwhile.
constexpr std::int64_t kShortRow = 24;

template <typename T>
inline bool is_nan(T x) {
    return x != x;
}

// Returns the extreme element of x; NaN if x contains one.
template <bool Largest, typename T>
T extreme_of(const T* x, std::int64_t size) {
    T best = x[0];
    if constexpr (std::is_integral_v<T>) {
        for (std::int64_t i = 1; i < size; ++i) {
            best = (Largest ? x[i] > best : x[i] < best) ? x[i] : best;
        }
        return best;
    } else {
        using Op = std::conditional_t<Largest, graphkit::Largest, Smallest>;
        constexpr std::int64_t lanes = kLanes<T>;
        Vector<T> bests[4] = {splat(best), splat(best), splat(best), splat(best)};
        std::int64_t at = 0;
        for (; at + 4 * lanes <= size; at += 4 * lanes) {
#pragma GCC unroll 4
            for (int way = 0; way < 4; ++way) {
                bests[way] = Op::combine(bests[way], load(x + at + way * lanes));
            }
        }
        for (; at + lanes <= size; at += lanes) {
            bests[0] = Op::combine(bests[0], load(x + at));
        }
        if (at < size) {
            bests[1] = Op::combine(bests[1], load_part(x + at, size - at, best));
        }
        return across<Op, T>(Op::combine(Op::combine(bests[0], bests[1]), Op::combine(bests[2], bests[3])));
    }
}

// Whether x is a better extreme than the earlier `best`.
template <bool Largest, bool Last, typename T>
inline bool replaces(T x, T best) {
    const bool better = Largest ? x > best : x < best;
    if constexpr (std::is_integral_v<T>) {
        return better | (Last & (x == best));
    } else {
        const bool taken = is_nan(best);
        const bool wins = better | (Last & (x == best));
        return taken ? Last & is_nan(x) : wins | is_nan(x);
    }
}

template <bool Largest, bool Last, typename T>
std::int64_t arg_of_row(const T* x, std::int64_t size) {
    T best = x[0];
    std::int64_t found = 0;
    for (std::int64_t at = 0; at < size; at += kSearchBlock) {
        const T extreme = extreme_of<Largest>(x + at, size - at < kSearchBlock ? size - at : kSearchBlock);
        if (at == 0 || replaces<Largest, Last>(extreme, best)) {
            best = extreme;
            found = at;
        }
    }
    const auto is_best = [&](std::int64_t i) { return x[i] == best || (is_nan(best) && is_nan(x[i])); };
    if constexpr (Last) {
        std::int64_t i = size - found < kSearchBlock ? size : found + kSearchBlock;
        do {
            --i;
        } while (!is_best(i));
        return i;
    } else {
        while (!is_best(found)) {
            ++found;
        }
        return found;
    }
}

// Returns the first extreme of a row without NaN; -1 if there is a NaN. A step is shorter than one of arg_of_row.
template <bool Largest, typename T>
std::int64_t arg_of_short_row(const T* x, std::int64_t size) {
    T best = x[0];
    bool nan = is_nan(best);
    for (std::int64_t i = 1; i < size; ++i) {
        nan |= is_nan(x[i]);
        best = (Largest ? x[i] > best : x[i] < best) ? x[i] : best;
    }
    if (nan) {
        return -1;
    }
    std::int64_t found = 0;
    while (x[found] != best) {
        ++found;
    }
    return found;
}

template <typename T>
std::int64_t arg_row(const T* x, std::int64_t size, bool largest, bool last) {
    if (!last && size <= kShortRow) {
        const std::int64_t found = largest ? arg_of_short_row<true>(x, size) : arg_of_short_row<false>(x, size);
        if (found >= 0) {
            return found;
        }
    }
    if (largest) {
        return last ? arg_of_row<true, true>(x, size) : arg_of_row<true, false>(x, size);
    }
    return last ? arg_of_row<false, true>(x, size) : arg_of_row<false, false>(x, size);
}

// For floats: one vector of columns after the other.
template <bool Largest, bool Last, typename T>
void arg_of_float_columns(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t width, std::int64_t* out) {
    using Bits = typename BitsOf<T>::type;
    constexpr std::int64_t lanes = kLanes<T>;
    for (std::int64_t c = 0; c < width; c += lanes) {
        const std::int64_t part = width - c < lanes ? width - c : lanes;
        const auto read = [&](const T* from) { return part == lanes ? load(from) : load_part(from, part, T{0}); };
        Vector<T> best = read(x + c);
        Vector<Bits> found{};
        for (std::int64_t row = 1; row < rows; ++row) {
            const Vector<T> v = read(x + row * stride + c);
            const Vector<Bits> taken = best != best;
            const Vector<Bits> nan = v != v;
            Vector<Bits> wins = Largest ? v > best : v < best;
            if constexpr (Last) {
                wins = wins | (v == best) | nan;
            } else {
                wins = wins | (nan & ~taken);
            }
            best = wins ? v : best;
            found = wins ? (Vector<Bits>{} + static_cast<Bits>(row)) : found;
        }
        for (std::int64_t i = 0; i < lanes; ++i) {
            if (i < part) {
                out[c + i] = found[i];
            }
        }
    }
}

template <bool Largest, bool Last, typename T>
void arg_of_integer_columns(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t width, std::int64_t* out) {
    T best[kArgTile];
    std::int32_t found[kArgTile];
    for (std::int64_t c = 0; c < width; ++c) {
        best[c] = x[c];
        found[c] = 0;
    }
    for (std::int64_t row = 1; row < rows; ++row) {
        const T* from = x + row * stride;
        const auto number = static_cast<std::int32_t>(row);
        for (std::int64_t c = 0; c < width; ++c) {
            const bool wins = replaces<Largest, Last>(from[c], best[c]);
            best[c] = wins ? from[c] : best[c];
            found[c] = wins ? number : found[c];
        }
    }
    for (std::int64_t c = 0; c < width; ++c) {
        out[c] = found[c];
    }
}

template <bool Largest, bool Last, typename T>
constexpr auto arg_of_columns() {
    if constexpr (std::is_integral_v<T>) {
        return arg_of_integer_columns<Largest, Last, T>;
    } else {
        return arg_of_float_columns<Largest, Last, T>;
    }
}

template <typename T>
void arg_columns(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t width, bool largest, bool last,
                 std::int64_t* out) {
    if (largest) {
        (last ? arg_of_columns<true, true, T>() : arg_of_columns<true, false, T>())(x, rows, stride, width, out);
    } else {
        (last ? arg_of_columns<false, true, T>() : arg_of_columns<false, false, T>())(x, rows, stride, width, out);
    }
}

// Computes rows of `Columns` elements as the columns of a tile.
template <int Columns, typename T>
void arg_narrow_rows(const T* x, std::int64_t rows, bool largest, bool last, std::int64_t* out) {
    constexpr std::int64_t tile = 128;
    alignas(kVectorBytes) T panel[Columns * tile];
    for (std::int64_t row = 0; row < rows; row += tile) {
        const std::int64_t part = rows - row < tile ? rows - row : tile;
        split_rows<T, Columns>(reinterpret_cast<const std::byte*>(x + row * Columns),
                               reinterpret_cast<std::byte*>(panel), tile, part);
        arg_columns(panel, Columns, tile, part, largest, last, out + row);
    }
}

template <typename T>
void arg_rows(const T* x, std::int64_t rows, std::int64_t size, bool largest, bool last, std::int64_t* out) {
    if (rows > 1 && size >= 2 && size <= kNarrow) {
        return with_columns(
            size, [&](auto narrow) { arg_narrow_rows<decltype(narrow)::value>(x, rows, largest, last, out); });
    }
    for (std::int64_t row = 0; row < rows; ++row) {
        out[row] = arg_row(x + row * size, size, largest, last);
    }
}

template <typename T>
void rank_halves(const T* x, std::int64_t size, bool largest, std::int16_t* to) {
    const int nan = largest ? 0x7fff : -0x8000;
    for (std::int64_t i = 0; i < size; ++i) {
        const int magnitude = x[i].bits & 0x7fff;
        const int value = (x[i].bits & 0x8000) != 0 ? -magnitude : magnitude;
        to[i] = static_cast<std::int16_t>(magnitude > kInfinity<T> ? nan : value);
    }
}

// Whether one of kKeyBlock elements may precede `worst`, or is NaN.
template <bool Largest, typename T>
bool may_precede(const T* x, T worst) {
    using Bits = typename BitsOf<T>::type;
    Vector<Bits> all = ~Vector<Bits>{};
    for (std::int64_t i = 0; i < kKeyBlock; i += kLanes<T>) {
        all &= Largest ? load(x + i) <= worst : load(x + i) >= worst;
    }
    return any_bit<Bits>(~all);
}

template <typename T>
std::int64_t next_block(const T* x, std::int64_t stride, std::int64_t at, std::int64_t size, bool largest, T worst,
                        Key<T>* keys) {
    const Key<T> limit = rank_key(worst, largest);
    for (; at < size; at += kKeyBlock) {
        const std::int64_t part = size - at < kKeyBlock ? size - at : kKeyBlock;
        if constexpr (std::is_floating_point_v<T>) {  // most blocks end here
            if (stride == 1 && part == kKeyBlock &&
                !(largest ? may_precede<true>(x + at, worst) : may_precede<false>(x + at, worst))) {
                continue;
            }
        }
        auto least = static_cast<Key<T>>(-1);
        const auto take = [&](std::int64_t i, T element) {
            keys[i] = rank_key(element, largest);
            least = keys[i] < least ? keys[i] : least;
        };
        if (stride == 1 && part == kKeyBlock) {
            for (std::int64_t i = 0; i < kKeyBlock; ++i) {
                take(i, x[at + i]);
            }
        } else {
            for (std::int64_t i = 0; i < part; ++i) {
                take(i, x[(at + i) * stride]);
            }
        }
        if (least < limit) {
            break;
        }
    }
    return at;
}

template <typename T>
constexpr SortingFunctions<T> sorting_functions() {
    return {{arg_rows<T>, arg_columns<T>}, next_block<T>};
}

constexpr SortingTable make_sorting_table() {
    return {sorting_functions<float>(),
            sorting_functions<double>(),
            sorting_functions<std::int8_t>(),
            sorting_functions<std::int16_t>(),
            sorting_functions<std::int32_t>(),
            sorting_functions<std::int64_t>(),
            sorting_functions<std::uint8_t>(),
            sorting_functions<std::uint16_t>(),
            sorting_functions<std::uint32_t>(),
            sorting_functions<std::uint64_t>(),
            rank_halves<Float16>,
            rank_halves<BFloat16>,
            next_block<Float16>,
            next_block<BFloat16>};
}

}  // namespace

GRAPHKIT_ISA_DEFINE(SortingTable, sorting_table) = make_sorting_table();

}  // namespace graphkit
