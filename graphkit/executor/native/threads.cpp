#include "threads.h"

#include <atomic>

#include "kernel.h"

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

std::mutex team_mutex;
std::atomic<int> chosen_threads{0};
thread_local bool alone = false;

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

Team::Team(int threads) : previous_(omp_get_max_threads()) {
    const int wanted = threads > 0 ? threads : default_threads();
    if (alone && wanted > 1) {
        throw NativeError("a worker of an engine runs on one thread; compile with threads=1 what it shall run");
    }
    if (wanted > 1) {
        lock_ = std::unique_lock(team_mutex);
    }
    omp_set_num_threads(wanted);
}

Team::~Team() {
    omp_set_num_threads(previous_);
}

}  // namespace graphkit
