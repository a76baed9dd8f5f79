// A barrier for the threads of one parallel region that meet often, within a few hundred nanoseconds.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <thread>

#include "kernel.h"

namespace graphkit {

// Every part announces its arrival in a cache line of its own and watches the others': no line is written by two. A part
// that waits for long yields its core, so that more parts than cores still get on.
class Barrier {
  public:
    static std::size_t bytes(int parts) { return static_cast<std::size_t>(parts) * kAlignment; }

    // `memory` has bytes(parts), aligned to kAlignment. Comes before the parallel region.
    Barrier(std::byte* memory, int parts) : memory_(memory) {
        for (int part = 0; part < parts; ++part) {
            new (memory + bytes(part)) std::atomic<std::uint32_t>(0);
        }
    }

    // Returns when all of `parts` have called it as often as this one. What they wrote before is seen afterwards.
    void wait(int part, int parts) const {
        const std::uint32_t arrived = arrivals(part).load(std::memory_order_relaxed) + 1;
        arrivals(part).store(arrived, std::memory_order_release);
        for (int other = 0; other < parts; ++other) {
            for (int tries = 0; behind(other, arrived); ++tries) {
                tries < kSpins ? pause() : std::this_thread::yield();
            }
        }
    }

  private:
    static constexpr int kSpins = 2000;

    std::atomic<std::uint32_t>& arrivals(int part) const {
        return *std::launder(reinterpret_cast<std::atomic<std::uint32_t>*>(memory_ + bytes(part)));
    }

    // The count may wrap around; parts are at most one meeting apart.
    bool behind(int part, std::uint32_t arrived) const {
        return arrivals(part).load(std::memory_order_acquire) - arrived > UINT32_MAX / 2;
    }

    static void pause() {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
    }

    std::byte* memory_;
};

}  // namespace graphkit
