#include "runtime/threads.h"

#include <atomic>
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
