// A hash table from pointers to small numbers, faster than std::unordered_map: it allocates only when it grows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace graphkit {

class PointerTable {
  public:
    // Adds a pointer that is not null, with the number 0, unless it is there. Returns its number, which is valid until
    // the next call, and whether the pointer was added.
    std::pair<std::uint32_t*, bool> add(const void* key) {
        if (2 * count_ >= entries_.size()) {
            grow();
        }
        Entry& entry = entries_[place(key)];
        const bool added = entry.key == nullptr;
        if (added) {
            entry.key = key;
            ++count_;
        }
        return {&entry.number, added};
    }

    bool contains(const void* key) const { return count_ != 0 && entries_[place(key)].key != nullptr; }

    std::size_t size() const { return count_; }

  private:
    struct Entry {
        const void* key = nullptr;
        std::uint32_t number = 0;
    };

    // Returns the position of a pointer, or of the free entry for it.
    std::size_t place(const void* key) const {
        const auto address = reinterpret_cast<std::uintptr_t>(key);
        // Objects are aligned to 16 bytes. The product mixes the other bits.
        std::size_t position = ((address >> 4U) * 0x9E3779B97F4A7C15U) >> 32U & (entries_.size() - 1);
        while (entries_[position].key != nullptr && entries_[position].key != key) {
            position = (position + 1) & (entries_.size() - 1);
        }
        return position;
    }

    void grow() {
        std::vector<Entry> old(entries_.empty() ? 32 : 4 * entries_.size());
        old.swap(entries_);
        for (const Entry& entry : old) {
            if (entry.key != nullptr) {
                entries_[place(entry.key)] = entry;
            }
        }
    }

    std::vector<Entry> entries_;
    std::size_t count_ = 0;
};

}  // namespace graphkit
