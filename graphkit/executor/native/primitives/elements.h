// Elements that are moved but not computed with: only their size matters. Memory need not be aligned to that size.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "runtime/kernel.h"
#include "runtime/threads.h"
#include "simd/half.h"

namespace graphkit {

struct Block16 {
    std::uint64_t parts[2];
};

template <typename T>
inline T load_element(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <typename T>
inline void store_element(std::byte* to, T value) {
    std::memcpy(to, &value, sizeof value);
}

// Calls body with a value of a type of `size` bytes: 1, 2, 4, 8 or 16.
template <typename Body>
inline void with_element(std::size_t size, Body&& body) {
    switch (size) {
        case 1:
            return body(std::uint8_t{});
        case 2:
            return body(std::uint16_t{});
        case 4:
            return body(std::uint32_t{});
        case 8:
            return body(std::uint64_t{});
        case 16:
            return body(Block16{});
        default:
            throw NativeError("no element has " + std::to_string(size) + " bytes");
    }
}

// Calls body with a value of the index type: int32 or int64.
template <typename Body>
inline void with_index(ElementType type, Body&& body) {
    switch (type) {
        case ElementType::i32:
            return body(std::int32_t{});
        case ElementType::i64:
            return body(std::int64_t{});
        default:
            throw Unsupported(std::string("indices of type ") + name_of(type));
    }
}

// Calls body with a value of the C++ type of an element type; those of float16 and bfloat16 are Float16 and BFloat16.
template <typename Body>
inline void with_type(ElementType type, Body&& body) {
    switch (type) {
        case ElementType::f32:
            return body(float{});
        case ElementType::f64:
            return body(double{});
        case ElementType::f16:
            return body(Float16{});
        case ElementType::bf16:
            return body(BFloat16{});
        case ElementType::i8:
            return body(std::int8_t{});
        case ElementType::i16:
            return body(std::int16_t{});
        case ElementType::i32:
            return body(std::int32_t{});
        case ElementType::i64:
            return body(std::int64_t{});
        case ElementType::u8:
            return body(std::uint8_t{});
        case ElementType::u16:
            return body(std::uint16_t{});
        case ElementType::u32:
            return body(std::uint32_t{});
        case ElementType::u64:
            return body(std::uint64_t{});
        case ElementType::boolean:
            return body(bool{});
    }
}

// Like memcpy, without a function call for short lengths.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
    const auto both_ends = [&](auto word) {
        using Word = decltype(word);
        const Word first = load_element<Word>(from);
        const Word last = load_element<Word>(from + bytes - sizeof(Word));
        store_element(to, first);
        store_element(to + bytes - sizeof(Word), last);
    };
    if (bytes > 128) {
        std::memcpy(to, from, bytes);
    } else if (bytes > 16) {
        const Block16 last = load_element<Block16>(from + bytes - 16);
        for (std::size_t i = 0; i + 16 < bytes; i += 16) {
            store_element(to + i, load_element<Block16>(from + i));
        }
        store_element(to + bytes - 16, last);
    } else if (bytes >= 8) {
        both_ends(std::uint64_t{});
    } else if (bytes >= 4) {
        both_ends(std::uint32_t{});
    } else if (bytes >= 2) {
        both_ends(std::uint16_t{});
    } else if (bytes == 1) {
        *to = *from;
    }
}

// Least bytes of output for which stores that bypass the caches are faster: together with its source, such an output
// fills the caches.
constexpr std::int64_t kStreamBytes = std::int64_t{16} << 20;

// Copies whole cache lines with stores that bypass the caches, if the processor has them; `to` must be aligned to 16
// bytes. These stores are not ordered with others: a thread that used them must call end_stream before other threads
// read.
inline void stream_lines(std::byte* to, const std::byte* from, std::int64_t bytes) {
#if defined(__SSE2__)
    for (std::int64_t i = 0; i < bytes; i += 16) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    }
#else
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
#endif
}

inline void end_stream() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

// Copies any number of bytes; stores bypass the caches if there are enough bytes.
inline void stream_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
    constexpr std::int64_t kLine = 64;
    if (bytes < 4 * kLine) {
        return copy_bytes(to, from, static_cast<std::size_t>(bytes));
    }
    const std::int64_t head = -static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to)) & (kLine - 1);
    const std::int64_t body = (bytes - head) / kLine * kLine;
    copy_bytes(to, from, static_cast<std::size_t>(head));
    stream_lines(to + head, from + head, body);
    copy_bytes(to + head + body, from + head + body, static_cast<std::size_t>(bytes - head - body));
}

// Converts an axis, which may be negative, to a position from the front. Throws NativeError if it is not in [-rank,
// rank).
inline std::size_t checked_axis(std::int64_t axis, std::size_t rank) {
    const auto count = static_cast<std::int64_t>(rank);
    if (axis < -count || axis >= count) {
        throw NativeError("axis " + std::to_string(axis) + " of " + std::to_string(rank) + " axes");
    }
    return static_cast<std::size_t>(axis < 0 ? axis + count : axis);
}

// An array as [outer, size, inner] around one of its axes.
struct AroundAxis {
    std::int64_t outer = 1;
    std::int64_t size = 1;
    std::int64_t inner = 1;

    AroundAxis() = default;
    AroundAxis(const Dims& shape, std::size_t axis)
        : outer(count({shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(axis)})),
          size(shape[axis]),
          inner(count({shape.begin() + static_cast<std::ptrdiff_t>(axis) + 1, shape.end()})) {}
};

// Bytes that one thread reads and writes in a nanosecond, beyond the caches. For cost estimates of parallel_for.
constexpr double kBytesPerNanosecond = 8;

// Like memcpy and memset, on several threads.
inline void copy(int threads, std::byte* to, const std::byte* from, std::int64_t bytes) {
    const auto part = [&](std::int64_t begin, std::int64_t end) {
        if (bytes < kStreamBytes) {
            copy_bytes(to + begin, from + begin, static_cast<std::size_t>(end - begin));
        } else {
            stream_bytes(to + begin, from + begin, end - begin);
            end_stream();
        }
    };
    parallel_for(threads, bytes, 1 / kBytesPerNanosecond, part, kAlignment);
}

inline void clear(int threads, std::byte* to, std::int64_t bytes) {
    const auto part = [&](std::int64_t begin, std::int64_t end) {
        std::memset(to + begin, 0, static_cast<std::size_t>(end - begin));
    };
    parallel_for(threads, bytes, 1 / kBytesPerNanosecond, part, kAlignment);
}

}  // namespace graphkit
