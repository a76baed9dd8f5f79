// Runs one program in 8 threads at the same time: threads PROGRAM.gkp
//
// Each thread runs inputs of its own 100 times. The outputs must be those of one thread alone, in all bits.
#include <atomic>
#include <cstring>
#include <exception>
#include <graphkit.hpp>
#include <iostream>
#include <thread>

namespace {

constexpr int kThreads = 8, kRuns = 100;

// Inputs that differ between threads. Types other than float32 stay zero.
std::vector<gk::Array> inputs_of(const gk::Program& program, int thread) {
    std::vector<gk::Array> inputs = program.make_inputs();
    for (gk::Array& input : inputs) {
        if (input.port().type == GK_FLOAT32) {
            for (std::size_t k = 0; k < input.size<float>(); ++k) {
                input.values<float>()[k] = static_cast<float>((k + static_cast<std::size_t>(thread)) % 16) / 8.0f - 1.0f;
            }
        }
    }
    return inputs;
}

bool same(const std::vector<gk::Array>& left, const std::vector<gk::Array>& right) {
    for (std::size_t i = 0; i < left.size(); ++i) {
        if (std::memcmp(left[i].data(), right[i].data(), left[i].port().bytes) != 0) {
            return false;
        }
    }
    return true;
}

int compare(const std::string& path) {
    const gk::Program program(path, 1);  // each run takes one thread: there are enough runs
    std::vector<std::vector<gk::Array>> inputs, expected;
    for (int thread = 0; thread < kThreads; ++thread) {
        inputs.push_back(inputs_of(program, thread));
        expected.push_back(program.run(inputs.back()));
    }
    std::atomic<int> equal{0};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
        threads.emplace_back([&, thread] {
            try {
                std::vector<gk::Array> outputs = program.make_outputs();
                for (int run = 0; run < kRuns; ++run) {
                    program.run(inputs[static_cast<std::size_t>(thread)], outputs);
                    equal += same(outputs, expected[static_cast<std::size_t>(thread)]);
                }
            } catch (const std::exception& error) {  // an exception must not leave a thread
                std::cerr << error.what() << '\n';
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    std::cout << equal << " of " << kThreads * kRuns << " runs have the expected bits\n";
    return equal == kThreads * kRuns ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::cerr << "usage: threads PROGRAM.gkp\n";
        return 2;
    }
    try {
        return compare(argv[1]);
    } catch (const std::exception& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
