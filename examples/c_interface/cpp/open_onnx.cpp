// Opens a network of any format that graphkit reads, and keeps the converted program: open_onnx NETWORK FOLDER
//
// The first run needs the command `graphkit`. Later runs open the program in the folder.
#include <exception>
#include <graphkit.hpp>
#include <iostream>

int main(int argc, char** argv) {
    if (argc != 3) {
        std::cerr << "usage: open_onnx NETWORK FOLDER\n";
        return 2;
    }
    gk_options options{};
    options.cache_folder = argv[2];
    options.convert_timeout = 600;
    try {
        const gk::Program program(argv[1], options);
        for (const gk::Array& output : program.run(program.make_inputs())) {
            std::cout << output.port().name << ": " << output.port().bytes << " bytes\n";
        }
    } catch (const gk::Error& error) {
        std::cerr << gk_status_name(error.status()) << ": " << error.what() << "\n";
        return 1;
    }
    return 0;
}
