// Positions of extreme elements, and keys in whose order elements are selected. The loops are plain, for the compiler to
// vectorise. Included by simd/select_<isa>.cpp only.
#pragma once

#include "select_table.h"
#include "simd/vector.h"

namespace graphkit {
namespace {

// Elements of a row that are searched together.
constexpr std::int64_t kSearchBlock = 512;
constexpr std::int64_t kKeyBlock = 64;

template <typename T>
inline bool is_nan(T x) {
    return x != x;
}

// NaN if there is one.
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

// Whether x takes the place of an earlier `best`.
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

template <typename T>
std::int64_t arg_row(const T* x, std::int64_t size, bool largest, bool last) {
    if (largest) {
        return last ? arg_of_row<true, true>(x, size) : arg_of_row<true, false>(x, size);
    }
    return last ? arg_of_row<false, true>(x, size) : arg_of_row<false, false>(x, size);
}

template <bool Largest, bool Last, typename T>
void arg_of_columns(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t width, std::int64_t* out) {
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

template <typename T>
void arg_columns(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t width, bool largest, bool last,
                 std::int64_t* out) {
    if (largest) {
        (last ? arg_of_columns<true, true, T> : arg_of_columns<true, false, T>)(x, rows, stride, width, out);
    } else {
        (last ? arg_of_columns<false, true, T> : arg_of_columns<false, false, T>)(x, rows, stride, width, out);
    }
}

// The magnitude above which a half float is NaN.
template <typename T>
constexpr int kInfinity = std::is_same_v<T, Float16> ? 0x7c00 : 0x7f80;

template <typename T>
void rank_halves(const T* x, std::int64_t size, bool largest, std::int16_t* to) {
    const int nan = largest ? 0x7fff : -0x8000;
    for (std::int64_t i = 0; i < size; ++i) {
        const int magnitude = x[i].bits & 0x7fff;
        const int value = (x[i].bits & 0x8000) != 0 ? -magnitude : magnitude;
        to[i] = static_cast<std::int16_t>(magnitude > kInfinity<T> ? nan : value);
    }
}

template <typename T>
inline Key<T> key_of(T x) {
    constexpr Key<T> sign = static_cast<Key<T>>(Key<T>{1} << (8 * sizeof(T) - 1));
    if constexpr (std::is_integral_v<T>) {
        return static_cast<Key<T>>(std::is_signed_v<T> ? static_cast<Key<T>>(x) ^ sign : static_cast<Key<T>>(x));
    } else if constexpr (std::is_floating_point_v<T>) {
        const auto bits = bit_cast<Key<T>>(x + T{0});  // -0 becomes 0
        const Key<T> key = (bits & sign) != 0 ? ~bits : bits | sign;
        return x != x ? static_cast<Key<T>>(-1) : key;
    } else {
        const int magnitude = x.bits & 0x7fff;
        const int value = (x.bits & 0x8000) != 0 ? -magnitude : magnitude;
        return static_cast<Key<T>>(magnitude > kInfinity<T> ? 0xffff : value + 0x8000);
    }
}

template <typename T>
void keys_of(const T* x, std::int64_t stride, std::int64_t size, bool largest, Key<T>* to) {
    const auto flip = static_cast<Key<T>>(largest ? -1 : 0);
    if (stride == 1) {
        for (std::int64_t i = 0; i < size; ++i) {
            to[i] = static_cast<Key<T>>(key_of(x[i]) ^ flip);
        }
        return;
    }
    for (std::int64_t i = 0; i < size; ++i) {
        to[i] = static_cast<Key<T>>(key_of(x[i * stride]) ^ flip);
    }
}

template <typename T>
std::int64_t next_below(const Key<T>* keys, std::int64_t at, std::int64_t size, Key<T> limit) {
    for (; at + kKeyBlock <= size; at += kKeyBlock) {
        Key<T> least = keys[at];
        for (std::int64_t i = 1; i < kKeyBlock; ++i) {
            least = keys[at + i] < least ? keys[at + i] : least;
        }
        if (least < limit) {
            break;
        }
    }
    while (at < size && keys[at] >= limit) {
        ++at;
    }
    return at;
}

template <typename T>
constexpr SelectFunctions<T> select_functions() {
    return {{arg_row<T>, arg_columns<T>}, {keys_of<T>, next_below<T>}};
}

constexpr SelectTable make_select_table() {
    return {select_functions<float>(),
            select_functions<double>(),
            select_functions<std::int8_t>(),
            select_functions<std::int16_t>(),
            select_functions<std::int32_t>(),
            select_functions<std::int64_t>(),
            select_functions<std::uint8_t>(),
            select_functions<std::uint16_t>(),
            select_functions<std::uint32_t>(),
            select_functions<std::uint64_t>(),
            rank_halves<Float16>,
            rank_halves<BFloat16>,
            {keys_of<Float16>, next_below<Float16>},
            {keys_of<BFloat16>, next_below<BFloat16>}};
}

}  // namespace
}  // namespace graphkit
