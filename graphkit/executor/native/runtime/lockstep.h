// Work in phases that follow one another within a microsecond, for the threads of one parallel region.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <thread>

#include "runtime/kernel.h"

namespace graphkit {

// Each phase is made of the same number of chunks, and starts when all chunks of the one before are done. A thread does
// its own chunks, which keeps their data in its cache; while it waits, it does those that others have not begun, so
// that a thread without a core holds nobody up. The memory comes from the caller.
class Lockstep {
  public:
    static std::size_t bytes(int chunks) { return static_cast<std::size_t>(chunks) * 2 * kAlignment; }

    // `memory` has bytes(chunks), aligned to kAlignment. Made before the threads start.
    Lockstep(std::byte* memory, int chunks) : memory_(memory), chunks_(chunks) {
        for (int line = 0; line < 2 * chunks; ++line) {
            new (memory + line * kLineBytes) Counter(0);
        }
    }

    int chunks() const { return chunks_; }

    // What one thread knows: its own chunks [begin, end), the phase it is in, and how long it waits before it helps.
    struct Thread {
        int begin;
        int end;
        std::uint32_t phase = 0;
        int patience = kPatience;
    };

    // Calls work(chunk) for the thread's chunks in its next phase, and for others if need be; returns when the phase is
    // over, and all that was written in it can be seen. Every thread goes through the same phases.
    template <typename Work>
    void next_phase(Thread& thread, Work&& work) const {
        const std::uint32_t number = ++thread.phase;
        for (int chunk = thread.begin; chunk < thread.end; ++chunk) {
            take(chunk, number, work);
        }
        // Who had to be helped once is likely not to be there for the next phase, either.
        int patience = kPatience;
        int first = 0;  // all chunks before it are done
        for (int tries = 0;; ++tries) {
            while (first < chunks_ && !is_before(done(first).load(std::memory_order_acquire), number)) {
                ++first;
            }
            if (first == chunks_) {
                break;
            }
            if (tries >= thread.patience && help(first, number, work)) {
                thread.patience = patience = 0;
            } else if (tries < kSpins) {
                pause();
            } else {
                std::this_thread::yield();
            }
        }
        thread.patience = patience;
    }

  private:
    using Counter = std::atomic<std::uint32_t>;

    static constexpr int kPatience = 100;  // tries before helping: a microsecond or two
    static constexpr int kSpins = 1000;
    static constexpr std::ptrdiff_t kLineBytes = kAlignment;

    // The phase whose work on a chunk was begun, and the one that is done: in two cache lines, because all threads
    // watch the second one while only the chunk's own thread touches the first.
    Counter& begun(int chunk) const { return counter(2 * chunk); }
    Counter& done(int chunk) const { return counter(2 * chunk + 1); }
    Counter& counter(int line) const { return *std::launder(reinterpret_cast<Counter*>(memory_ + line * kLineBytes)); }

    // Counts may wrap around.
    static bool is_before(std::uint32_t a, std::uint32_t b) { return a - b > UINT32_MAX / 2; }

    template <typename Work>
    bool take(int chunk, std::uint32_t number, Work& work) const {
        std::uint32_t before = number - 1;
        if (!begun(chunk).compare_exchange_strong(before, number, std::memory_order_relaxed)) {
            return false;
        }
        work(chunk);
        done(chunk).store(number, std::memory_order_release);
        return true;
    }

    template <typename Work>
    bool help(int first, std::uint32_t number, Work& work) const {
        for (int chunk = first; chunk < chunks_; ++chunk) {
            if (begun(chunk).load(std::memory_order_relaxed) == number - 1 && take(chunk, number, work)) {
                return true;
            }
        }
        return false;
    }

    static void pause() {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
    }

    std::byte* memory_;
    int chunks_;
};

}  // namespace graphkit
