// Loops shared with helpers, for ThreadSanitizer (bench/sanitize.sh thread): several threads share loops of all sizes
// at the same time, one inside another, with chunks that throw, and after pauses in which helpers fall asleep. Exits
// with 1 where a result is wrong.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/threads.h"

namespace {

std::atomic<bool> wrong{false};

// One loop writes the terms of a sum, each by the thread that takes its chunk. A second loop reads them.
void run(int threads, std::int64_t items, std::int64_t grain, double nanoseconds) {
    const graphkit::Team team(threads);
    std::vector<std::int64_t> terms(static_cast<std::size_t>(items), -1);
    std::vector<int> numbers(static_cast<std::size_t>(items), -1);
    graphkit::parallel_for(
        threads, items, nanoseconds,
        [&](std::int64_t begin, std::int64_t end) {
            graphkit::parallel_for(threads, end - begin, nanoseconds, [&](std::int64_t from, std::int64_t to) {
                for (std::int64_t i = begin + from; i < begin + to; ++i) {
                    terms[static_cast<std::size_t>(i)] = i;
                    numbers[static_cast<std::size_t>(i)] = graphkit::thread_number();
                }
            });
        },
        grain);
    std::vector<std::int64_t> doubled(terms.size());
    graphkit::parallel_for(threads, items, nanoseconds, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t other = items - 1 - i;  // what another thread wrote, most likely
            doubled[static_cast<std::size_t>(i)] = 2 * terms[static_cast<std::size_t>(other)];
        }
    });
    for (std::int64_t i = 0; i < items; ++i) {
        const int number = numbers[static_cast<std::size_t>(i)];
        if (doubled[static_cast<std::size_t>(i)] != 2 * (items - 1 - i) || number < 0 || number >= threads) {
            wrong = true;
        }
    }
}

// One of the items throws, on whichever thread: it comes out, and the next loops are as before.
void fail(int threads, std::int64_t items, std::int64_t bad) {
    const graphkit::Team team(threads);
    bool caught = false;
    try {
        graphkit::parallel_for(threads, items, 1000, [&](std::int64_t begin, std::int64_t end) {
            if (begin <= bad && bad < end) {
                throw std::runtime_error("bad");
            }
        });
    } catch (const std::runtime_error&) {
        caught = true;
    }
    if (caught != (bad < items) || graphkit::in_chunk()) {
        wrong = true;
    }
}

void work(unsigned seed, std::chrono::steady_clock::time_point end) {
    std::mt19937 random(seed);
    const auto below = [&](unsigned most) { return static_cast<std::int64_t>(random() % most); };
    while (std::chrono::steady_clock::now() < end) {
        run(static_cast<int>(1 + below(6)), below(400), 1 + below(8), static_cast<double>(below(3) * 300));
        fail(static_cast<int>(1 + below(6)), below(400), below(400));
        if (below(50) == 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(below(2000)));
        }
    }
}

}  // namespace

int main(int count, char** arguments) {
    const int seconds = count > 1 ? std::atoi(arguments[1]) : 5;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    graphkit::share_all_work(true);
    std::vector<std::thread> threads;
    for (unsigned seed = 0; seed < 4; ++seed) {
        threads.emplace_back(work, seed, end);
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    std::puts(wrong ? "wrong results" : "all results are right");
    return wrong ? 1 : 0;
}
