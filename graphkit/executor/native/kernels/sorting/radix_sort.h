// A stable sort of items (key, place) by unsigned keys, in time linear in their number.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace graphkit {

template <typename K, typename Place>
struct KeyedPlace {
    K key;
    Place place;
};

// Sorts `items` by key; items with equal keys must have ascending places. Returns the result, which is in `items` or in
// `spare`, a buffer of the same size.
template <typename K, typename Place>
KeyedPlace<K, Place>* sorted_by_key(KeyedPlace<K, Place>* items, KeyedPlace<K, Place>* spare, std::int64_t size) {
    using Item = KeyedPlace<K, Place>;
    constexpr std::int64_t kShort = 256;  // for shorter arrays, comparisons are faster than the tables of a radix sort
    if (size <= kShort) {
        std::sort(items, items + size,
                  [](const Item& a, const Item& b) { return a.key != b.key ? a.key < b.key : a.place < b.place; });
        return items;
    }
    constexpr int kBits = sizeof(K) <= 2 ? 8 : 11;
    constexpr int kDigits = (8 * static_cast<int>(sizeof(K)) + kBits - 1) / kBits;
    constexpr std::size_t kValues = std::size_t{1} << kBits;
    const auto digit = [](K key, int number) {
        return static_cast<std::size_t>(static_cast<std::uint64_t>(key) >> (number * kBits)) & (kValues - 1);
    };
    std::int64_t counts[kDigits][kValues] = {};
    for (std::int64_t i = 0; i < size; ++i) {
        for (int number = 0; number < kDigits; ++number) {
            ++counts[number][digit(items[i].key, number)];
        }
    }
    for (int number = 0; number < kDigits; ++number) {
        if (counts[number][digit(items[0].key, number)] == size) {
            continue;  // all keys have the same digit
        }
        std::int64_t begin = 0;
        for (std::int64_t& at : counts[number]) {
            begin += std::exchange(at, begin);
        }
        for (std::int64_t i = 0; i < size; ++i) {
            spare[counts[number][digit(items[i].key, number)]++] = items[i];
        }
        std::swap(items, spare);
    }
    return items;
}

}  // namespace graphkit
