#include "runtime/pool.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/arithmetic.h"
#include "runtime/experience.h"
#include "runtime/invalid_flag.h"
#include "runtime/kernel.h"

#ifdef __unix__
#include <pthread.h>
#endif
#ifdef __linux__
#include <sched.h>
#endif

namespace graphkit {
namespace {

// More helpers than any machine has cores.
constexpr int kMostHelpers = 4095;
// How many threads can share loops at the same time. Further threads run their loops alone.
constexpr int kSlots = 64;
// A loop is divided into at most this many ranges; the chunks of a range are claimed in order. A thread begins with its
// own range, where its cache holds data of the previous loop, and continues with the ranges of other threads.
constexpr std::uint32_t kRanges = 16;

using Clock = Experience::Clock;

// How long a thread looks for work before it sleeps: an idle helper while any thread holds a slot, an idle helper
// otherwise, and a loop's own thread that waits for chunks of helpers.
constexpr std::chrono::microseconds kLooksInRuns{400};
constexpr std::chrono::microseconds kLooksBetweenRuns{100};
constexpr std::chrono::microseconds kLooksForOthers{100};

void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

// Calls `found` until it returns true or `patience` has passed. Returns the last result.
template <typename Found, typename Patience>
bool look(Found&& found, Patience&& patience) {
    std::optional<Clock::time_point> start;
    for (;;) {
        for (int tries = 0; tries < 32; ++tries) {
            if (found()) {
                return true;
            }
            pause();
        }
        const Clock::time_point now = Clock::now();
        if (!start) {
            start = now;
        } else if (now - *start >= patience()) {
            return false;
        }
    }
}

// The unclaimed part of a range, in one word: the number of its loop, the end, and the next chunk. If a thread claims a
// chunk with a compare-exchange of this word, the loop is not over, so the loop's fields that the thread read before
// are valid. (Loop numbers repeat after 2^32 loops of a slot.)
constexpr std::int64_t kMostChunks = 0xffff;

constexpr std::uint64_t range_word(std::uint32_t loop, std::uint64_t end, std::uint64_t next) {
    return std::uint64_t{loop} << 32 | end << 16 | next;
}

struct alignas(kAlignment) Range {
    std::atomic<std::uint64_t> left{0};
};

// The place where one thread publishes its loops, one after the other. The fields of a loop change only after the loop
// is over. Helpers poll `generation`, so it has a cache line of its own.
struct Slot {
    alignas(kAlignment) std::atomic<std::uint32_t> generation{0};  // number of the latest loop
    alignas(kAlignment) std::atomic<void (*)(void*, std::int64_t)> body{nullptr};
    std::atomic<void*> context{nullptr};
    std::atomic<std::uint32_t> ranges{1};
    std::atomic<int> threads{1};
    Range claimed[kRanges];
    alignas(kAlignment) std::atomic<std::uint32_t> done{0};  // chunks that helpers completed, of all loops so far
    std::atomic<std::uint32_t> waits{0};                     // whether the loop's own thread sleeps
    alignas(kAlignment) std::uint32_t expected = 0;          // the value of `done` when the latest loop is over

    void publish(const SharedLoop& loop);
    // Runs the chunks of this loop that the thread `number` can claim. Returns how many it ran.
    std::uint32_t take_part(std::uint32_t loop, int number);
    // Waits for the chunks of helpers. Returns how long that took, or 0 if it took less than kLooksForOthers.
    Clock::duration wait_for(std::uint32_t chunks_of_helpers);
};

void Slot::publish(const SharedLoop& loop) {
    const std::uint32_t number = generation.load(std::memory_order_relaxed) + 1;
    const auto count = static_cast<std::uint32_t>(loop.chunks);
    const std::uint32_t parts = std::min({kRanges, count, static_cast<std::uint32_t>(loop.threads)});
    body.store(loop.body, std::memory_order_relaxed);
    context.store(loop.context, std::memory_order_relaxed);
    ranges.store(parts, std::memory_order_relaxed);
    threads.store(loop.threads, std::memory_order_relaxed);
    for (std::uint64_t range = 0; range < parts; ++range) {
        const std::uint64_t end = (range + 1) * count / parts;
        claimed[range].left.store(range_word(number, end, range * count / parts), std::memory_order_release);
    }
    // Sequentially consistent with a helper that goes to sleep: either it sees the loop, or this thread sees it asleep.
    generation.store(number, std::memory_order_seq_cst);
}

std::uint32_t Slot::take_part(std::uint32_t loop, int number) {
    if (number >= threads.load(std::memory_order_relaxed)) {
        return 0;
    }
    const auto call = body.load(std::memory_order_relaxed);
    void* const with = context.load(std::memory_order_relaxed);
    const std::uint32_t parts = ranges.load(std::memory_order_relaxed);
    std::uint32_t taken = 0;
    for (std::uint32_t i = 0; i < parts; ++i) {
        std::atomic<std::uint64_t>& left = claimed[(static_cast<std::uint32_t>(number) + i) % parts].left;
        std::uint64_t word = left.load(std::memory_order_acquire);
        while (word >> 32 == loop && (word & kMostChunks) < (word >> 16 & kMostChunks)) {
            if (left.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
                call(with, static_cast<std::int64_t>(word & kMostChunks));
                ++taken;
                word = left.load(std::memory_order_acquire);
            }
        }
    }
    return taken;
}

Clock::duration Slot::wait_for(std::uint32_t chunks_of_helpers) {
    expected += chunks_of_helpers;
    const auto is_done = [&] { return done.load(std::memory_order_acquire) == expected; };
    if (look(is_done, [] { return kLooksForOthers; })) {
        return {};
    }
    const Clock::time_point start = Clock::now();
    waits.store(1, std::memory_order_seq_cst);
    for (std::uint32_t seen = done.load(std::memory_order_seq_cst); seen != expected;
         seen = done.load(std::memory_order_seq_cst)) {
        done.wait(seen, std::memory_order_acquire);
    }
    waits.store(0, std::memory_order_relaxed);
    return Clock::now() - start + kLooksForOthers;
}

struct alignas(kAlignment) Helper {
    std::atomic<std::uint32_t> asleep{0};
    std::uint32_t seen[kSlots] = {};  // number of the last loop of each slot that it looked at
};

// By number. Outside of Pool and zero at the start, so that the pages of helpers that do not exist take no memory.
constinit Helper each[kMostHelpers + 1];

constexpr int kWordBits = 64;
// How many sleeping helpers a thread wakes. Woken helpers do the same, so that the loop's own thread need not wake all.
constexpr int kWakes = 2;

// Never destroyed: helpers use it until the process ends.
struct Pool {
    std::mutex mutex;         // guards the start of helpers
    std::vector<int> cores;   // that helpers are pinned to
    std::atomic<int> helpers{0};
    alignas(kAlignment) std::atomic<std::uint64_t> active{0};  // bits of the slots in use
    alignas(kAlignment) std::atomic<std::uint64_t> sleepers[(kMostHelpers + 1) / kWordBits]{};
    std::atomic<int> wanted{0};  // number of threads of the loop that wakes helpers
    Slot slots[kSlots];

    Slot* take_slot();
    void give_slot(const Slot& slot) { active.fetch_and(~bit_of(slot), std::memory_order_release); }
    std::uint64_t bit_of(const Slot& slot) const { return std::uint64_t{1} << (&slot - slots); }
    bool help_once(int number);
    [[noreturn]] void help(int number, std::optional<int> core);
    void sleep(int number);
    void wake_some();
};

Pool& pool() {
    static Pool& made = *new Pool;
    return made;
}

struct Current {
    int number = 0;
    bool in_chunk = false;
    Slot* slot = nullptr;
    Experience experience;
};
constinit thread_local Current current;

Slot* Pool::take_slot() {
    std::uint64_t seen = active.load(std::memory_order_relaxed);
    while (seen != UINT64_MAX) {
        const int free = std::countr_one(seen);
        // Sequentially consistent with a helper that goes to sleep, like Slot::publish.
        if (active.compare_exchange_weak(seen, seen | std::uint64_t{1} << free, std::memory_order_seq_cst)) {
            return &slots[free];
        }
    }
    return nullptr;
}

bool Pool::help_once(int number) {
    bool helped = false;
    for (std::uint64_t left = active.load(std::memory_order_seq_cst); left != 0; left &= left - 1) {
        Slot& slot = slots[std::countr_zero(left)];
        std::uint32_t& seen = each[number].seen[std::countr_zero(left)];
        const std::uint32_t loop = slot.generation.load(std::memory_order_seq_cst);
        if (loop == std::exchange(seen, loop)) {
            continue;
        }
        const std::uint32_t taken = slot.take_part(loop, number);
        if (taken > 0) {
            helped = true;
            slot.done.fetch_add(taken, std::memory_order_seq_cst);
            if (slot.waits.load(std::memory_order_seq_cst) != 0) {
                slot.done.notify_all();
            }
        }
    }
    return helped;
}

// Pins this thread to a core. If the core is not allowed, the thread stays unpinned.
void stay_on(int core) {
#ifdef __linux__
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(core, &only);
    pthread_setaffinity_np(pthread_self(), sizeof(only), &only);
#else
    static_cast<void>(core);
#endif
}

void Pool::help(int number, std::optional<int> core) {
#ifdef __linux__
    pthread_setname_np(pthread_self(), "graphkit-helper");
#endif
    if (core) {
        stay_on(*core);
    }
    current.number = number;
    current.in_chunk = true;
    set_arithmetic(kDefaultArithmetic);  // not inherited from the thread that started the helper
    for (;;) {
        const auto patience = [&] {
            return active.load(std::memory_order_relaxed) != 0 ? kLooksInRuns : kLooksBetweenRuns;
        };
        if (!look([&] { return help_once(number); }, patience)) {
            sleep(number);
        }
    }
}

void Pool::sleep(int number) {
    std::atomic<std::uint32_t>& asleep = each[number].asleep;
    std::atomic<std::uint64_t>& word = sleepers[number / kWordBits];
    const std::uint64_t bit = std::uint64_t{1} << (number % kWordBits);
    asleep.store(1, std::memory_order_relaxed);
    word.fetch_or(bit, std::memory_order_seq_cst);
    if (help_once(number)) {
        if ((word.fetch_and(~bit, std::memory_order_seq_cst) & bit) != 0) {
            return;
        }
    }
    asleep.wait(1, std::memory_order_acquire);
    wake_some();
}

void Pool::wake_some() {
    const int end = std::min(wanted.load(std::memory_order_relaxed), helpers.load(std::memory_order_relaxed) + 1);
    int woken = 0;
    for (int first = 0; first < end; first += kWordBits) {
        std::atomic<std::uint64_t>& word = sleepers[first / kWordBits];
        const std::uint64_t among = end - first >= kWordBits ? UINT64_MAX : (std::uint64_t{1} << (end - first)) - 1;
        for (std::uint64_t left = word.load(std::memory_order_seq_cst) & among; left != 0; left &= left - 1) {
            const std::uint64_t bit = left & -left;
            if ((word.fetch_and(~bit, std::memory_order_seq_cst) & bit) != 0) {
                std::atomic<std::uint32_t>& asleep = each[first + std::countr_zero(bit)].asleep;
                // An exchange, not a store: notify_one() must not check for sleepers before the new value is visible.
                asleep.exchange(0, std::memory_order_seq_cst);
                asleep.notify_one();
                if (++woken == kWakes) {
                    return;
                }
            }
        }
    }
}

// Resets the pool in the child of a fork, which has no helpers. Its only thread may be in a run, between two loops.
void after_fork() {
    Pool& here = pool();
    const std::uint64_t own = current.slot == nullptr ? 0 : here.bit_of(*current.slot);
    new (&here.mutex) std::mutex;
    for (std::atomic<std::uint64_t>& word : here.sleepers) {
        word.store(0, std::memory_order_relaxed);
    }
    here.helpers.store(0, std::memory_order_relaxed);
    here.active.store(own, std::memory_order_relaxed);
    for (Slot& slot : here.slots) {
        slot.waits.store(0, std::memory_order_relaxed);
        slot.expected = slot.done.load(std::memory_order_relaxed);
        // The loops belong to threads that do not exist in the child: nothing may be claimed from them.
        for (Range& range : slot.claimed) {
            range.left.store(0, std::memory_order_relaxed);
        }
    }
}

void follow_forks() {
#ifdef __unix__
    static const int registered = pthread_atfork(nullptr, nullptr, after_fork);
    static_cast<void>(registered);
#endif
}

}  // namespace

int thread_number() {
    return current.number;
}

int exchange_thread_number(int number) {
    return std::exchange(current.number, number);
}

bool in_chunk() {
    return current.in_chunk;
}

void start_helpers(int helpers) {
    if (helpers <= 0) {
        return;  // a run on one thread needs no pool
    }
    Pool& here = pool();
    if (helpers <= here.helpers.load(std::memory_order_acquire)) {
        return;
    }
    if (helpers > kMostHelpers) {
        throw NativeError(std::to_string(helpers + 1) + " threads: no more than " + std::to_string(kMostHelpers + 1) +
                          " are possible");
    }
    follow_forks();
    const std::lock_guard lock(here.mutex);
    for (int there = here.helpers.load(std::memory_order_relaxed); there < helpers; ++there) {
        try {
            const int number = there + 1;
            const std::size_t cores = here.cores.size();
            const std::optional<int> core =
                cores == 0 ? std::nullopt : std::optional<int>(here.cores[static_cast<std::size_t>(number) % cores]);
            std::thread([&here, number, core] { here.help(number, core); }).detach();
        } catch (const std::system_error& error) {
            throw NativeError("the system gives no more than " + std::to_string(there + 1) + " of " +
                              std::to_string(helpers + 1) + " threads (" + error.what() +
                              "): ask for fewer, or raise its limits (ulimit -u, ulimit -v)");
        }
        here.helpers.store(there + 1, std::memory_order_release);
    }
}

void pin_helpers(std::vector<int> cores) {
#ifdef __linux__
    for (const int core : cores) {
        if (core < 0 || core >= CPU_SETSIZE) {
            throw NativeError("core " + std::to_string(core) + ": a number from 0 to " +
                              std::to_string(CPU_SETSIZE - 1) + " was expected");
        }
    }
#endif
    Pool& here = pool();
    const std::lock_guard lock(here.mutex);
    here.cores = std::move(cores);
}

void leave_helpers() {
    if (current.slot != nullptr && !current.in_chunk) {  // inside of a chunk, the loop still needs its slot
        pool().give_slot(*std::exchange(current.slot, nullptr));
    }
}

void run_shared(const SharedLoop& loop) {
    if (loop.chunks > kMostChunks) {
        throw NativeError("a loop of " + std::to_string(loop.chunks) + " chunks: no more than " +
                          std::to_string(kMostChunks) + " can be claimed");
    }
    Pool& here = pool();
    Experience& experience = current.experience;
    SharedLoop shared = loop;
    if (!current.in_chunk) {
        if (!experience.shares(loop.nanoseconds)) {
            leave_helpers();
        } else if (current.slot == nullptr) {
            current.slot = here.take_slot();
        }
        // If several threads share loops, each gets fewer helpers.
        shared.threads -= std::popcount(here.active.load(std::memory_order_relaxed)) - 1;
    }
    if (current.slot == nullptr || current.in_chunk || shared.threads < 2) {
        const bool before = std::exchange(current.in_chunk, true);
        for (std::int64_t chunk = 0; chunk < loop.chunks; ++chunk) {
            loop.body(loop.context, chunk);
        }
        current.in_chunk = before;
        return;
    }
    const KeptFlag kept;
    Slot& slot = *current.slot;
    slot.publish(shared);
    if (experience.wakes(loop.nanoseconds)) {
        here.wanted.store(shared.threads, std::memory_order_relaxed);
        here.wake_some();
    }
    const Clock::time_point start = Clock::now();
    current.in_chunk = true;
    const std::uint32_t own = slot.take_part(slot.generation.load(std::memory_order_relaxed), 0);
    current.in_chunk = false;
    const Clock::duration worked = Clock::now() - start;
    if (own == loop.chunks) {
        experience.missed(worked);
    } else {
        const Clock::duration waited = slot.wait_for(static_cast<std::uint32_t>(loop.chunks) - own);
        // A helper may still be in its last chunk when the others are done: two chunks' time does not count as late.
        experience.helped(waited - 2 * worked / std::max(own, 1U), shared.threads - 1);
    }
}

}  // namespace graphkit
