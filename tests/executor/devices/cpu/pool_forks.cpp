// Forks while another thread is inside of a loop, and helpers late: the child must not claim chunks of that loop, whose
// body and stack it has no thread for. Exits with 1 where a child did, computed something else, or did not end.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "runtime/pool.h"

namespace {

using namespace graphkit;
using Clock = std::chrono::steady_clock;

void compute(std::chrono::microseconds time) {
    for (const Clock::time_point end = Clock::now() + time; Clock::now() < end;) {
    }
}

template <typename Body>
void share(Body&& body) {
    run_shared(SharedLoop::of(4, 16, 1e6, body));
}

// The child's work: its own loops, with its own helper threads.
int in_child() {
    start_helpers(3);
    std::atomic<long> sum{0};
    long loops = 0;
    for (const Clock::time_point end = Clock::now() + std::chrono::milliseconds(200); Clock::now() < end; ++loops) {
        share([&](std::int64_t chunk) noexcept {
            sum += chunk;
            compute(std::chrono::microseconds(100));
        });
    }
    leave_helpers();
    return sum == loops * 120 ? 0 : 1;
}

int round(int number) {
    const pid_t parent = getpid();
    start_helpers(1);
    // Helpers that are late, so that this thread prefers to be alone.
    for (int i = 0; i < 10; ++i) {
        share([](std::int64_t) noexcept { compute(std::chrono::microseconds(thread_number() == 0 ? 500 : 20000)); });
    }
    leave_helpers();
    std::atomic<bool> stop{false};
    std::thread beside([&] {
        while (!stop) {
            share([&](std::int64_t) noexcept {
                if (getpid() != parent) {
                    _exit(1);
                }
                compute(std::chrono::microseconds(300));
            });
        }
        leave_helpers();
    });
    usleep(static_cast<useconds_t>(4000 + number * 137));
    const pid_t child = fork();
    if (child == 0) {
        _exit(in_child());
    }
    int status = 1;
    int waited = 0;
    while (waitpid(child, &status, WNOHANG) != child && ++waited < 5000) {
        usleep(1000);
    }
    if (waited == 5000) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        std::puts("a child did not end");
    }
    stop = true;
    beside.join();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace

int main() {
    int failed = 0;
    for (int number = 0; number < 15; ++number) {
        const pid_t fresh = fork();
        if (fresh == 0) {
            _exit(round(number));
        }
        int status = 1;
        waitpid(fresh, &status, 0);
        failed += WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
    }
    std::printf("%d of 15 rounds failed\n", failed);
    return failed == 0 ? 0 : 1;
}
