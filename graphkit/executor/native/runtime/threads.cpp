#include "runtime/threads.h"

#include <atomic>
#include <climits>
#include <condition_variable>
#include <cstdlib>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/kernel.h"

#ifdef __unix__
#include <pthread.h>
#endif
#if defined(_OPENMP) && defined(__linux__)
#include <sched.h>
#endif

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_max_threads() {
    return 1;
}
static void omp_set_num_threads(int) {}
static int omp_get_thread_num() {
    return 0;
}
static int omp_get_thread_limit() {
    return 1;
}
static int omp_get_max_active_levels() {
    return 1;
}
static void omp_set_dynamic(int) {}
#endif

namespace graphkit {
namespace {

std::recursive_mutex team_mutex;  // a step that calls Python may run a kernel, or another model
std::atomic<int> chosen_threads{0};
std::atomic<bool> all_shared{false};
thread_local bool alone = false;

// OpenMP keeps workers for each thread that starts regions, and waits for them forever in the child of a fork, where
// they are missing. Only the thread that forked goes on there; another thread may have owned the team.
thread_local bool has_workers = false;
thread_local bool lost_workers = false;
bool is_child = false;

void after_fork() {
    is_child = true;
    lost_workers = has_workers;
    new (&team_mutex) std::recursive_mutex;
}

void follow_forks() {
#ifdef __unix__
    static const int registered = pthread_atfork(nullptr, nullptr, after_fork);
    static_cast<void>(registered);
#endif
}

#if defined(_OPENMP) && defined(__linux__)
std::vector<int> allowed_cores() {
    cpu_set_t set;
    std::vector<int> cores;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        for (int core = 0; core < CPU_SETSIZE; ++core) {
            if (CPU_ISSET(core, &set)) {
                cores.push_back(core);
            }
        }
    }
    return cores;
}

// Once for each thread that has a team: a team as large as the cores allowed gets one core for each worker, because the
// system may leave two of them on one core for many regions. The thread itself, which is not ours, goes where it is
// let. OMP_PROC_BIND, whatever it says, leaves this to OpenMP. The child of a fork shares the cores with its parent.
void pin_workers(int threads) {
    thread_local bool done = false;
    static const std::vector<int> cores = allowed_cores();
    static const bool ours = std::getenv("OMP_PROC_BIND") == nullptr;
    if (done || threads < 2 || !ours || is_child || static_cast<std::size_t>(threads) != cores.size()) {
        return;
    }
    done = true;
    on_team([](int number, int) {
        if (number > 0 && static_cast<std::size_t>(number) < cores.size()) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(cores[static_cast<std::size_t>(number)], &one);
            sched_setaffinity(0, sizeof(one), &one);
        }
    });
}
#else
void pin_workers(int) {}
#endif

// More than any machine has, and few enough for OpenMP, which keeps a table of them on the stack.
constexpr int kMostThreads = 4096;

// Once for each size that a thread's team grows to: whether the system gives so many threads, tried with threads of our
// own, because OpenMP ends the process where it does not get them.
void check_threads(int wanted) {
    thread_local int given = 1;
    if (wanted <= given) {
        return;
    }
    if (wanted > kMostThreads) {
        throw NativeError(std::to_string(wanted) + " threads: no more than " + std::to_string(kMostThreads) +
                          " are possible");
    }
    std::mutex mutex;
    std::condition_variable changed;
    bool ended = false;
    std::vector<std::thread> tried;
    std::string failure;
    try {
        tried.reserve(static_cast<std::size_t>(wanted));
        while (static_cast<int>(tried.size()) < wanted - given) {
            tried.emplace_back([&] {
                std::unique_lock lock(mutex);
                changed.wait(lock, [&] { return ended; });
            });
        }
    } catch (const std::exception& error) {
        failure = error.what();
    }
    {
        const std::lock_guard lock(mutex);
        ended = true;
    }
    changed.notify_all();
    for (std::thread& thread : tried) {
        thread.join();
    }
    if (!failure.empty()) {
        throw NativeError("the system gives no more than " + std::to_string(static_cast<int>(tried.size()) + given) +
                          " of " + std::to_string(wanted) + " threads (" + failure +
                          "): ask for fewer, or raise its limits (ulimit -u, ulimit -v)");
    }
    given = wanted;
}

// How many threads OpenMP lets a team have: where it has fewer than asked for, oneDNN computes a part of the result.
int permitted_threads() {
    return omp_get_max_active_levels() < 1 ? 1 : omp_get_thread_limit();
}

}  // namespace

int default_threads() {
    const int chosen = chosen_threads.load(std::memory_order_relaxed);
    return chosen > 0 ? chosen : std::min(omp_get_max_threads(), kMostDefault);
}

void set_default_threads(int threads) {
    chosen_threads.store(std::max(threads, 0), std::memory_order_relaxed);
}

int team_size() {
    return omp_get_max_threads();
}

int thread_number() {
    return omp_get_thread_num();
}

void work_alone() {
    alone = true;
    omp_set_num_threads(1);
}

std::thread start_thread(std::function<void()> body) {
    try {
        return std::thread(std::move(body));
    } catch (const std::system_error& error) {
        throw NativeError(std::string("the system gives no further thread (") + error.what() +
                          "): raise its limits (ulimit -u, ulimit -v), or end other work");
    }
}

void where_team_works(int threads, const std::function<void()>& body) {
    if (!lost_workers || threads == 1) {
        body();
        return;
    }
    std::exception_ptr failure;
    start_thread([&] {
        try {
            body();
        } catch (...) {
            failure = std::current_exception();
        }
    }).join();
    if (failure) {
        std::rethrow_exception(failure);
    }
}

bool shares_all_work() {
    return all_shared.load(std::memory_order_relaxed);
}

void share_all_work(bool on) {
    all_shared.store(on, std::memory_order_relaxed);
}

Team::Team(int threads) : previous_(omp_get_max_threads()) {
    const int wanted = std::min(threads > 0 ? threads : default_threads(), permitted_threads());
    if (alone && wanted > 1) {
        throw NativeError("a worker of an engine runs on one thread; compile with threads=1 what it shall run");
    }
    if (wanted > 1) {
        follow_forks();
        lock_ = std::unique_lock(team_mutex);
        check_threads(wanted);
        has_workers = true;
    }
    omp_set_dynamic(0);
    omp_set_num_threads(wanted);
    pin_workers(wanted);
}

Team::~Team() {
    omp_set_num_threads(previous_);
}

}  // namespace graphkit
