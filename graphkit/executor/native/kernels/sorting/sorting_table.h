// The inner loops of ArgMax, ArgMin and TopK, compiled for several instruction sets.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/sorting/key.h"
#include "runtime/isa.h"

namespace graphkit {

// The largest width that ArgFunctions::columns accepts.
constexpr std::int64_t kArgTile = 512;

// Number of elements that are compared with the worst candidate at a time.
constexpr std::int64_t kKeyBlock = 64;

// Positions of extreme elements: the first of equal ones, or the `last`. If an element is NaN, its position. float16
// and bfloat16 elements are given as ranks.
template <typename T>
struct ArgFunctions {
    // For each of `rows` contiguous rows of `size` > 0 elements.
    void (*rows)(const T* x, std::int64_t rows, std::int64_t size, bool largest, bool last, std::int64_t* out);
    // For each of `width` <= kArgTile columns of `rows` > 0 elements, `stride` apart.
    void (*columns)(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t width, bool largest, bool last,
                    std::int64_t* out);
};

// Finds the first of the blocks [at, at + kKeyBlock), [at + kKeyBlock, ...), ... below position `size` that contains a
// key (see rank_key) of x[position * stride] below that of `worst`, and writes the block's keys. Returns its first
// position, or at least `size` if there is none.
template <typename T>
using NextBlock = std::int64_t (*)(const T* x, std::int64_t stride, std::int64_t at, std::int64_t size, bool largest,
                                   T worst, Key<T>* keys);

template <typename T>
struct SortingFunctions {
    ArgFunctions<T> arg;
    NextBlock<T> next_block;
};

struct SortingTable {
    SortingFunctions<float> f32;
    SortingFunctions<double> f64;
    SortingFunctions<std::int8_t> i8;
    SortingFunctions<std::int16_t> i16;
    SortingFunctions<std::int32_t> i32;
    SortingFunctions<std::int64_t> i64;
    SortingFunctions<std::uint8_t> u8;
    SortingFunctions<std::uint16_t> u16;
    SortingFunctions<std::uint32_t> u32;
    SortingFunctions<std::uint64_t> u64;
    // Converts float16 and bfloat16 elements to integers with the same order. NaN is above all numbers if `largest`,
    // else below them.
    void (*rank_f16)(const Float16* x, std::int64_t size, bool largest, std::int16_t* to);
    void (*rank_bf16)(const BFloat16* x, std::int64_t size, bool largest, std::int16_t* to);
    NextBlock<Float16> next_block_f16;
    NextBlock<BFloat16> next_block_bf16;

    template <typename T>
    const SortingFunctions<T>& of() const {
        if constexpr (std::is_same_v<T, float>) {
            return f32;
        } else if constexpr (std::is_same_v<T, double>) {
            return f64;
        } else if constexpr (std::is_same_v<T, std::int8_t>) {
            return i8;
        } else if constexpr (std::is_same_v<T, std::int16_t>) {
            return i16;
        } else if constexpr (std::is_same_v<T, std::int32_t>) {
            return i32;
        } else if constexpr (std::is_same_v<T, std::int64_t>) {
            return i64;
        } else if constexpr (std::is_same_v<T, std::uint8_t>) {
            return u8;
        } else if constexpr (std::is_same_v<T, std::uint16_t>) {
            return u16;
        } else if constexpr (std::is_same_v<T, std::uint32_t>) {
            return u32;
        } else {
            static_assert(std::is_same_v<T, std::uint64_t>);
            return u64;
        }
    }

    template <typename T>
    NextBlock<T> next_block() const {
        if constexpr (std::is_same_v<T, Float16>) {
            return next_block_f16;
        } else if constexpr (std::is_same_v<T, BFloat16>) {
            return next_block_bf16;
        } else {
            return of<T>().next_block;
        }
    }

    void rank(const Float16* x, std::int64_t size, bool largest, std::int16_t* to) const {
        rank_f16(x, size, largest, to);
    }
    void rank(const BFloat16* x, std::int64_t size, bool largest, std::int16_t* to) const {
        rank_bf16(x, size, largest, to);
    }
};

GRAPHKIT_ISA_TABLE(SortingTable, sorting_table);

}  // namespace graphkit
