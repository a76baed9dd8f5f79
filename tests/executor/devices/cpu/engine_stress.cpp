// Random workloads on the dependency engine, compared with serial execution: a program for ThreadSanitizer, which sees
// every pair of operations that the engine lets run together and should not. bench/sanitize.sh builds and runs it.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/engine.h"

using namespace graphkit;

namespace {

using Random = std::mt19937;

const Engine::Poll kNoPoll = [] {};

void require(bool holds, const char* what) {
    if (!holds) {
        std::fprintf(stderr, "FAILED: %s\n", what);
        std::exit(1);
    }
}

std::size_t below(Random& random, std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random);
}

// One operation of a workload: what it reads and writes, and whether it throws.
struct Item {
    std::vector<std::size_t> reads;
    std::vector<std::size_t> writes;
    bool fails = false;

    // Plain memory: only the engine keeps threads from racing for it.
    void apply(std::vector<std::uint64_t>& state, std::uint64_t number) const {
        std::uint64_t value = number;
        for (const auto* list : {&reads, &writes}) {
            for (const std::size_t i : *list) {
                value = value * 6364136223846793005u + state[i];
            }
        }
        for (const std::size_t i : writes) {
            state[i] = value + i;
        }
    }
};

std::vector<Item> workload(Random& random, std::size_t variables, std::size_t count, double failing) {
    std::vector<Item> items(count);
    for (Item& item : items) {
        for (std::size_t n = below(random, 4); n > 0; --n) {
            item.reads.push_back(below(random, variables));
        }
        for (std::size_t n = below(random, 3); n > 0; --n) {
            item.writes.push_back(below(random, variables));
        }
        item.fails = std::bernoulli_distribution(failing)(random);
    }
    return items;
}

// Returns the state after serial execution. If an operation fails or reads or writes an unfit variable, it does not
// run, and the variables that it would write become unfit.
std::vector<std::uint64_t> serial(std::span<const Item> items, std::size_t variables) {
    std::vector<std::uint64_t> state(variables, 0);
    std::vector<bool> unfit(variables, false);
    for (std::size_t number = 0; number < items.size(); ++number) {
        const Item& item = items[number];
        bool stopped = item.fails;
        for (const auto* list : {&item.reads, &item.writes}) {
            for (const std::size_t i : *list) {
                stopped = stopped || unfit[i];
            }
        }
        if (!stopped) {
            item.apply(state, number);
        }
        for (const std::size_t i : item.writes) {
            unfit[i] = unfit[i] || stopped;
        }
    }
    return state;
}

void compare(Random& random, int workers, double failing) {
    const std::size_t count = 1 + below(random, 20);
    const std::vector<Item> items = workload(random, count, 600, failing);
    std::vector<std::uint64_t> state(count, 0);
    Engine engine(workers);
    Variables variables;
    for (std::size_t i = 0; i < count; ++i) {
        variables.push_back(engine.variable());
    }
    for (std::size_t number = 0; number < items.size(); ++number) {
        const Item& item = items[number];
        Variables reads, writes;
        for (const std::size_t i : item.reads) {
            reads.push_back(variables[i]);
        }
        for (const std::size_t i : item.writes) {
            writes.push_back(variables[i]);
        }
        engine.push(
            "item",
            [&state, &item, number] {
                if (item.fails) {
                    throw std::runtime_error("fails");
                }
                item.apply(state, number);
            },
            reads, writes, static_cast<int>(below(random, 5)));
        if (failing == 0 && below(random, 50) == 0) {
            const std::size_t chosen = below(random, count);
            engine.wait(variables[chosen], below(random, 2) == 0, kNoPoll);
            const std::uint64_t expected = serial(std::span(items).first(number + 1), count)[chosen];
            require(state[chosen] == expected, "a variable that was waited for has its value");
        }
    }
    const bool failed = engine.wait_all(kNoPoll) != nullptr;
    bool expected = false;
    for (const Item& item : items) {
        expected = expected || item.fails;
    }
    require(failed == expected, "wait_all reports a failure exactly when there was one");
    require(engine.wait_all(kNoPoll) == nullptr, "and reports it once");
    require(state == serial(items, count), "the result is that of serial execution");
    require(engine.close(std::chrono::seconds(60), kNoPoll), "the workers end");
}

// Several threads push, wait and cancel; then the engine goes away with work left.
void tumult(Random& random) {
    Engine engine(3);
    Variables variables;
    std::vector<std::uint64_t> state(6, 0);
    for (std::size_t i = 0; i < state.size(); ++i) {
        variables.push_back(engine.variable());
    }
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, seed = random()] {
            Random own(static_cast<Random::result_type>(seed));
            for (int n = 0; n < 500; ++n) {
                const std::size_t from = below(own, state.size()), to = below(own, state.size());
                engine.push("add", [&state, from, to] { state[to] += state[from] + 1; }, {variables[from]},
                            {variables[to]}, static_cast<int>(below(own, 3)));
                if (below(own, 20) == 0) {
                    engine.wait(variables[to], false, kNoPoll);
                }
                if (below(own, 100) == 0) {
                    engine.cancel();
                }
                if (below(own, 100) == 0) {
                    engine.wait_all(kNoPoll);
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    if (below(random, 2) == 0) {
        engine.wait_all(kNoPoll);
        require(engine.pending() == 0, "nothing is left after waiting for all");
    }
    require(engine.close(std::chrono::seconds(60), kNoPoll), "the workers end");
}

void measure(int workers, std::size_t count, std::size_t chains) {
    Engine engine(workers);
    Variables variables;
    for (std::size_t i = 0; i < chains; ++i) {
        variables.push_back(engine.variable());
    }
    std::vector<std::uint64_t> state(chains, 0);
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < count; ++i) {
        engine.push("add", [&value = state[i % chains]] { ++value; }, {}, {variables[i % chains]});
    }
    engine.wait_all(kNoPoll);
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    std::printf("%d workers, %zu chains: %.0f operations per second\n", workers, chains,
                static_cast<double>(count) / passed.count());
}

}  // namespace

int main(int argc, char** argv) {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 20;
    Random random(1);
    for (int round = 0; round < rounds; ++round) {
        for (const int workers : {1, 2, 4}) {
            compare(random, workers, 0);
            compare(random, workers, 0.02);
        }
        tumult(random);
    }
    for (const int workers : {1, 2, 4}) {
        measure(workers, 100000, 1);
        measure(workers, 100000, 64);
    }
    std::printf("%d rounds: ok\n", rounds);
}
