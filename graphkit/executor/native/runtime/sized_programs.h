// Makes the programs of a template for given sizes, without Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/arena_layout.h"
#include "runtime/bound_program.h"
#include "runtime/size_binding.h"
#include "runtime/size_table.h"

namespace graphkit {

struct NumbersHash {
    std::size_t operator()(const std::vector<std::uint32_t>& numbers) const;
};

// The steps and the memory requests of programs whose kernels have certain needs.
struct Structure {
    nb::object program;  // it is resized
    std::vector<std::size_t> order;  // of the nodes
    nb::object requests;
    // The size of each request: a position in the list of sizes. For the working memory of node i, it is -1 - i.
    std::vector<std::int64_t> request_sizes;
    std::vector<std::pair<int, SizeElements>> shape_values;  // by external memory
    nb::object operands;  // its meaning is known to Python only
};

struct SizedResult {
    Dims shape;
    std::int64_t bytes;
};

// The program for certain sizes. `structure` lives as long as the SizedPrograms that made it.
struct ProgramAt {
    std::unique_ptr<BoundProgram> program;
    const Structure* structure;
    std::int64_t arena_bytes;
    std::vector<SizedResult> results;
};

// It needs the GIL. Several threads may use it: the GIL is released while kernels are made slowly or by Python.
class SizedPrograms {
  public:
    using StepPlaces = std::tuple<nb::object, Places, ShapePlaces, ShapePlaces>;
    using Equal = std::tuple<std::size_t, std::size_t, std::string>;
    using Nonnegative = std::pair<std::size_t, std::string>;

    SizedPrograms(std::size_t kept, SizeTable table, std::vector<std::pair<std::size_t, std::size_t>> sources,
                  std::vector<Places> inputs, const std::vector<StepPlaces>& steps, std::vector<std::size_t> nodes,
                  const std::vector<Equal>& equal, const std::vector<Nonnegative>& nonnegative,
                  std::vector<std::pair<Places, std::size_t>> results);

    // Returns the program, or no value if the symbols do not follow from the shapes, or the shapes do not fit each
    // other. Throws NativeError if a size is invalid. The parameters are those of Python's `at`, see the bindings.
    std::optional<ProgramAt> make(const Shapes& shapes, std::optional<Dims> symbols, const nb::callable& kernel,
                                  const nb::callable& structured);
    nb::object at(const Shapes& shapes, std::optional<Dims> symbols, const nb::callable& kernel,
                  const nb::callable& structured);
    std::vector<std::vector<Dims>> kept() const;

  private:
    // The kernels of those nodes that have one. Nodes share kernels, so they are numbers in `distinct`.
    struct Kernels {
        std::vector<SizedKernelPtr> distinct;
        std::vector<std::size_t> nodes;

        const SizedKernelPtr& operator[](std::size_t node) const { return distinct[nodes[node]]; }
    };

    Kernels kernels_at(const Dims& sizes, const nb::callable& kernel);
    const Structure& structure_of(const Kernels& kernels, const Dims& sizes, const nb::callable& structured);
    ProgramAt program(const Structure& structure, Kernels&& kernels, const Dims& sizes) const;

    std::size_t kept_;
    SizeBinding binding_;
    std::vector<SizedStep> steps_;
    std::vector<std::size_t> nodes_;
    std::vector<std::pair<Places, std::size_t>> results_;
    NeedsTable needs_;
    std::unordered_map<std::vector<std::uint32_t>, Structure, NumbersHash> structures_;
};

}  // namespace graphkit
