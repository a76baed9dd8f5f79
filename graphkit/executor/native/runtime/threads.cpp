#include "runtime/threads.h"

#include <atomic>
#include <exception>
#include <string>
#include <system_error>
#include <utility>

#include "runtime/kernel.h"

#ifdef __linux__
#include <sched.h>
#endif

namespace graphkit {
namespace {

std::atomic<int> chosen_threads{0};
std::atomic<bool> all_shared{false};
constinit thread_local int team = 1;

int allowed_cores() {
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        return std::max(1, CPU_COUNT(&set));
    }
#endif
    return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

// Keeps the first exception that a chunk of a loop throws, and rethrows it after the loop.
class LoopFailure {
  public:
    // Stores the current exception. Call it in a handler.
    void keep() noexcept {
        if (!kept_.test_and_set()) {
            exception_ = std::current_exception();
        }
    }
    void rethrow() const {
        if (exception_) {
            std::rethrow_exception(exception_);
        }
    }

  private:
    std::atomic_flag kept_;
    std::exception_ptr exception_;
};

}  // namespace

int default_threads() {
    const int chosen = chosen_threads.load(std::memory_order_relaxed);
    return chosen > 0 ? chosen : allowed_cores();
}

void set_default_threads(int threads) {
    chosen_threads.store(std::max(threads, 0), std::memory_order_relaxed);
}

int team_size() {
    return team;
}

std::thread start_thread(std::function<void()> body) {
    try {
        return std::thread(std::move(body));
    } catch (const std::system_error& error) {
        throw NativeError(std::string("the system gives no further thread (") + error.what() +
                          "): raise its limits (ulimit -u, ulimit -v), or end other work");
    }
}

bool shares_all_work() {
    return all_shared.load(std::memory_order_relaxed);
}

void share_all_work(bool on) {
    all_shared.store(on, std::memory_order_relaxed);
}

LoopCut cut_loop(int threads, std::int64_t items, double nanoseconds, std::int64_t grain) {
    const double work = static_cast<double>(items) * nanoseconds;
    const int wanted = threads_for(std::min(threads, team_size()), work);
    const std::int64_t grains = (items + grain - 1) / grain;
    if (wanted <= 1 || grains <= 1) {
        return {1, 1};
    }
    const std::int64_t most = std::int64_t{kChunksPerThread} * wanted;
    const auto worth = static_cast<std::int64_t>(std::min(work / kChunkNanoseconds, static_cast<double>(most)));
    return {wanted, std::min(grains, shares_all_work() ? most : std::max<std::int64_t>(worth, wanted))};
}

void share_chunks(int threads, std::int64_t chunks, double nanoseconds, void (*body)(void* context, std::int64_t chunk),
                  void* context) {
    LoopFailure failure;
    const auto guarded = [&](std::int64_t chunk) noexcept {
        try {
            body(context, chunk);
        } catch (...) {
            failure.keep();
        }
    };
    run_shared(SharedLoop::of(threads, chunks, nanoseconds, guarded));
    failure.rethrow();
}

void share_ranges(LoopCut cut, std::int64_t items, double nanoseconds, std::int64_t grain,
                  void (*body)(void* context, std::int64_t begin, std::int64_t end), void* context) {
    const std::int64_t grains = (items + grain - 1) / grain;
    const auto part = [&](std::int64_t chunk) {
        const std::int64_t begin = grains * chunk / cut.chunks * grain;
        const std::int64_t end = std::min(items, grains * (chunk + 1) / cut.chunks * grain);
        if (begin < end) {
            body(context, begin, end);
        }
    };
    // At most as many threads as chunks, so that thread numbers are below `chunks`: working memory may be sized by
    // chunks.
    const auto sharing = static_cast<int>(std::min<std::int64_t>(cut.threads, cut.chunks));
    const auto call = [](void* parts, std::int64_t chunk) { (*static_cast<decltype(part)*>(parts))(chunk); };
    share_chunks(sharing, cut.chunks, static_cast<double>(items) * nanoseconds, call,
                 const_cast<void*>(static_cast<const void*>(&part)));
}

void run_ranges(int threads, std::int64_t items, double nanoseconds, std::int64_t grain,
                void (*body)(void* context, std::int64_t begin, std::int64_t end), void* context) {
    const LoopCut cut = cut_loop(threads, items, nanoseconds, grain);
    if (cut.chunks > 1) {
        share_ranges(cut, items, nanoseconds, grain, body, context);
    } else if (items > 0) {
        body(context, 0, items);
    }
}

Team::Team(int threads) : previous_(team), number_(thread_number()), arithmetic_(arithmetic()) {
    const int wanted = in_chunk() ? 1 : threads > 0 ? threads : default_threads();
    start_helpers(wanted - 1);
    team = wanted;
    exchange_thread_number(0);
    set_arithmetic(kDefaultArithmetic);
}

Team::~Team() {
    set_arithmetic(arithmetic_);
    exchange_thread_number(number_);
    team = previous_;
    if (team <= 1) {
        leave_helpers();
    }
}

}  // namespace graphkit
