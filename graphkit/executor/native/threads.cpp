#include "threads.h"

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "kernel.h"

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
#endif

namespace graphkit {
namespace {

std::recursive_mutex team_mutex;  // a step that calls Python may run a kernel, or another model
std::atomic<int> chosen_threads{0};
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
// system may leave two of them on one core for many regions. The thread itself, which is not ours, goes where it is let.
// OMP_PROC_BIND, whatever it says, leaves this to OpenMP. The child of a fork shares the cores with its parent.
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

}  // namespace

int default_threads() {
    const int chosen = chosen_threads.load(std::memory_order_relaxed);
    return chosen > 0 ? chosen : omp_get_max_threads();
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

void where_team_works(int threads, const std::function<void()>& body) {
    if (!lost_workers || threads == 1) {
        body();
        return;
    }
    std::exception_ptr failure;
    std::thread([&] {
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

Team::Team(int threads) : previous_(omp_get_max_threads()) {
    const int wanted = threads > 0 ? threads : default_threads();
    if (alone && wanted > 1) {
        throw NativeError("a worker of an engine runs on one thread; compile with threads=1 what it shall run");
    }
    if (wanted > 1) {
        follow_forks();
        lock_ = std::unique_lock(team_mutex);
        has_workers = true;
    }
    omp_set_num_threads(wanted);
    pin_workers(wanted);
}

Team::~Team() {
    omp_set_num_threads(previous_);
}

}  // namespace graphkit
