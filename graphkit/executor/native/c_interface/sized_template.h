// A program for any sizes of its inputs: sizes of values are expressions, and kernels are made for each new size.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "c_interface/batch_programs.h"
#include "c_interface/program_part.h"
#include "runtime/arena_layout.h"
#include "runtime/kernel_factory.h"
#include "runtime/recipe.h"
#include "runtime/size_binding.h"

namespace graphkit {

struct SavedPort;
class SavedProgram;
class RandomState;
using SavedPorts = std::vector<SavedPort>;

// Makes the kernels of nodes with equal operators and types.
struct SavedFactory {
    std::string recipe;
    ShapePlaces inputs;
    ShapePlaces outputs;
};

// A block of the arena, in use from step `first` to step `last`. size: the position of its bytes in the list of sizes;
// for the working memory of step i, it is -1 - i.
struct SavedRequest {
    std::int64_t first = 0;
    std::int64_t last = 0;
    std::int64_t size = 0;
};

// In the arena, the offset of a location is the number of a request. Other memory is numbered in this order: inputs,
// the random state if there is one, outputs, constants, shape values.
struct SizedSavedStep {
    std::string name;
    std::uint64_t factory = 0;
    std::vector<Location> inputs;
    std::vector<Location> outputs;
    Location scratch;
};

// A constant whose elements are sizes.
struct SavedShapeValue {
    Places elements;
    std::string type;
};

struct SavedTemplate {
    std::uint64_t symbols = 0;
    std::vector<std::tuple<std::uint64_t, std::int64_t, std::int64_t>> instructions;  // of a SizeTable
    std::vector<std::uint64_t> table;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> sources;  // of each symbol: an input, and its axis
    std::vector<Places> inputs;
    std::vector<Places> outputs;
    std::vector<EqualSizes> equal;
    std::vector<NonnegativeSize> nonnegative;
    std::vector<SavedFactory> factories;
    std::vector<SavedRequest> requests;
    std::vector<SizedSavedStep> steps;
    std::vector<std::uint64_t> constants;  // their numbers in the file; they are not packed
    std::vector<SavedShapeValue> values;
};

template <>
struct RecipeFields<EqualSizes> {
    static auto of(EqualSizes& e) { return std::tie(e.a, e.b, e.node); }
};

template <>
struct RecipeFields<NonnegativeSize> {
    static auto of(NonnegativeSize& n) { return std::tie(n.place, n.node); }
};

template <>
struct RecipeFields<SavedFactory> {
    static auto of(SavedFactory& f) { return std::tie(f.recipe, f.inputs, f.outputs); }
};

template <>
struct RecipeFields<SavedRequest> {
    static auto of(SavedRequest& r) { return std::tie(r.first, r.last, r.size); }
};

template <>
struct RecipeFields<SizedSavedStep> {
    static auto of(SizedSavedStep& s) { return std::tie(s.name, s.factory, s.inputs, s.outputs, s.scratch); }
};

template <>
struct RecipeFields<SavedShapeValue> {
    static auto of(SavedShapeValue& v) { return std::tie(v.elements, v.type); }
};

template <>
struct RecipeFields<SavedTemplate> {
    static auto of(SavedTemplate& t) {
        return std::tie(t.symbols, t.instructions, t.table, t.sources, t.inputs, t.outputs, t.equal, t.nonnegative,
                        t.factories, t.requests, t.steps, t.constants, t.values);
    }
};

// Threads may use it at the same time.
class SizedTemplate {
  public:
    using Constants = std::vector<std::pair<const char*, std::size_t>>;

    // The ports describe names, types and ranks. `constants` and `random` (null: no program draws random numbers) must
    // outlive the object. Throws NativeError if the parts do not fit.
    SizedTemplate(SavedTemplate saved, const SavedPorts& inputs, const SavedPorts& outputs, const Constants& constants,
                  RandomState* random, int threads);
    ~SizedTemplate();

    // Returns the program for inputs of these shapes. The latest ones are kept. Throws std::invalid_argument if the
    // shapes do not fit, or if a step has no kernel for them.
    std::shared_ptr<SavedProgram> at(ShapeList inputs);

  private:
    struct Bound;
    struct Packed;

    void check() const;
    void check_locations() const;
    Dims sizes(ShapeList inputs) const;
    // Number of pieces of external memory before the constants.
    std::size_t ports() const { return inputs_.size() + (random_ != nullptr ? 1 : 0) + outputs_.size(); }
    std::shared_ptr<Bound> bound(const Dims& sizes);
    Kernels kernels_at(const Dims& sizes) const;
    ArenaLayout layout_at(const Dims& sizes, const Kernels& kernels) const;
    SavedStep step_of(const SizedSavedStep& given, const ArenaLayout& layout, Bound& bound);
    Location constant_of(const SizedSavedStep& step, std::size_t input, const Kernel& kernel, Bound& bound);
    std::shared_ptr<const Packed> packed(std::uint64_t constant, const Kernel& kernel, int input);

    SavedTemplate saved_;
    SavedPorts inputs_, outputs_;
    const Constants& constants_;
    RandomState* random_;
    int threads_;
    SizeBinding binding_;
    std::vector<std::int64_t> blocks_;  // the size of each request
    std::optional<MemoryRequests> requests_;
    std::vector<std::unique_ptr<KernelFactory>> factories_;
    std::mutex mutex_;
    std::list<std::pair<Dims, std::shared_ptr<Bound>>> recent_;  // most recently used first
    // By constant and layout. The programs that read them own them.
    std::map<std::pair<std::uint64_t, std::string>, std::weak_ptr<const Packed>> packed_;
};

}  // namespace graphkit
