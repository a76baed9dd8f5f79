// Runs a program that graphkit saved: run [--rows N] PROGRAM.gkp [INPUT.bin ...]
//
// With --rows, it runs a batch of N rows, which the programs of the file compute in parts.
// Each file contains the elements of one input. Without files, inputs are generated. Prints inputs and outputs.
#include <cstdio>
#include <exception>
#include <fstream>
#include <graphkit.hpp>
#include <iostream>
#include <limits>
#include <stdexcept>
#include <string>

namespace {

void read_file(const std::string& path, gk::Array& array) {
    std::ifstream file(path, std::ios::binary);
    const auto bytes = static_cast<std::streamsize>(array.port().bytes);
    file.read(static_cast<char*>(array.data()), bytes);
    if (!file || file.peek() != std::ifstream::traits_type::eof()) {
        throw std::runtime_error(path + " cannot be read, or does not contain " + std::to_string(bytes) + " bytes");
    }
}

// Floating-point numbers from -1 to 0.875, integers that are 0 or 1.
void generate(gk::Array& array) {
    switch (array.port().type) {
        case GK_FLOAT32:
            for (std::size_t k = 0; k < array.size<float>(); ++k) {
                array.values<float>()[k] = static_cast<float>(k % 16) / 8.0f - 1.0f;
            }
            break;
        case GK_INT64:
            for (std::size_t k = 0; k < array.size<std::int64_t>(); ++k) {
                array.values<std::int64_t>()[k] = static_cast<std::int64_t>(k % 2);
            }
            break;
        default:
            throw std::runtime_error("inputs are generated for float32 and int64 only: give files");
    }
}

void describe(const char* kind, const gk::Port& port) {
    std::cout << kind << ' ' << port.name << ' ' << gk_type_name(port.type) << " [";
    for (std::size_t i = 0; i < port.shape.size(); ++i) {
        std::cout << (i > 0 ? ", " : "") << port.shape[i];
    }
    std::cout << "]\n";
}

template <typename T>
void print(const gk::Array& array) {
    for (std::size_t k = 0; k < array.size<T>(); ++k) {
        std::cout << array.values<T>()[k] << '\n';
    }
}

// rows: of a batch; negative: the sizes of the first program.
void run(const std::string& path, const std::vector<std::string>& files, long long rows) {
    const gk::Program program(path);
    std::vector<gk::Array> inputs = rows < 0 ? program.make_inputs() : program.make_inputs(rows);
    if (!files.empty() && files.size() != inputs.size()) {
        throw std::runtime_error("the program has " + std::to_string(inputs.size()) + " inputs, but " +
                                 std::to_string(files.size()) + " files were given");
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        describe("input", inputs[i].port());
        files.empty() ? generate(inputs[i]) : read_file(files[i], inputs[i]);
    }
    for (const gk::Array& output : rows < 0 ? program.run(inputs) : program.run_shapes(inputs)) {
        describe("output", output.port());
        switch (output.port().type) {
            case GK_FLOAT32:
                print<float>(output);
                break;
            case GK_INT64:
                print<std::int64_t>(output);
                break;
            default:
                std::cout << '(' << output.port().bytes << " bytes)\n";
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    const bool has_rows = argc > 2 && std::string(argv[1]) == "--rows";
    const int first = has_rows ? 3 : 1;
    if (argc <= first) {
        std::cerr << "usage: run [--rows N] PROGRAM.gkp [INPUT.bin ...]\n";
        return 2;
    }
    std::cout.precision(std::numeric_limits<float>::max_digits10);
    try {
        run(argv[first], {argv + first + 1, argv + argc}, has_rows ? std::stoll(argv[2]) : -1);
    } catch (const gk::Error& error) {
        std::cerr << gk_status_name(error.status()) << ": " << error.what() << '\n';
        return 1;
    } catch (const std::exception& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
    return 0;
}
