// For Python, which writes saved programs.
#include <algorithm>

#include "c_interface/blake2b.h"
#include "c_interface/saved_program.h"
#include "runtime/array.h"
#include "runtime/bindings.h"
#include "runtime/gil.h"

namespace graphkit {
namespace {

// The hash `blake2b8`; see graphkit/ir/hashing.py.
class Blake2b8 {
  public:
    void update(nb::handle bytes) {
        const Array array = open_array(bytes, "bytes", false);
        const WithoutGil released;
        lanes_.add({static_cast<const char*>(array.data), array.bytes});
    }

    std::string hexdigest() {
        Blake2b hash;
        lanes_.finish(hash);
        return hash.hex();
    }

  private:
    LongHash lanes_;
};

}  // namespace

GRAPHKIT_BINDINGS(saved_program) {
    m.attr("program_format") = kProgramFormat;
    m.attr("checksum_piece") = kChecksumPiece;
    m.def("program_target", &program_target,
          "Return what kernels and layouts of weights depend on: instruction sets, and oneDNN.");
    m.def(
        "program_checksum",
        [](nb::handle bytes, std::uint64_t seed) {
            const Array array = open_array(bytes, "bytes", false);
            return program_checksum({static_cast<const char*>(array.data), array.bytes}, seed);
        },
        "bytes"_a, "seed"_a, nb::sig("def program_checksum(bytes: numpy.ndarray, seed: int) -> int"),
        "Return a checksum that continues `seed`.");
    m.def(
        "blake2b",
        [](nb::handle bytes, std::size_t piece) {
            const Array array = open_array(bytes, "bytes", false);
            const std::string_view all(static_cast<const char*>(array.data), array.bytes);
            piece = std::max<std::size_t>(piece, 1);
            Blake2b hash;
            for (std::size_t at = 0; at < all.size(); at += piece) {
                hash.add(all.substr(at, piece));
            }
            return hash.hex();
        },
        "bytes"_a, "piece"_a, nb::sig("def blake2b(bytes: numpy.ndarray, piece: int) -> str"),
        "Return the BLAKE2b of the C library, with 32 bytes, of `piece` bytes at once.");
    nb::class_<Blake2b8>(m, "Blake2b8", "The hash of weights; see graphkit.ir.hashing.")
        .def(nb::init<>())
        .def("update", &Blake2b8::update, "bytes"_a, nb::sig("def update(self, bytes: numpy.ndarray) -> None"),
             "Add bytes.")
        .def("hexdigest", &Blake2b8::hexdigest, "Return the hash of all bytes. The object must not be used again.");
    m.def("records_recipes", &records_recipes, "Return whether kernels that this thread makes keep their recipe.");
    m.def("record_recipes", &record_recipes, "on"_a,
          "Whether kernels that this thread makes from now on keep their recipe.");
}

}  // namespace graphkit
