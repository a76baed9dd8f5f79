// The kernels of a template's nodes for given sizes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/bindings.h"
#include "runtime/size_binding.h"

namespace graphkit {

struct DimsHash {
    using is_transparent = void;
    std::size_t operator()(const Dims& sizes) const;
};

// The properties of a kernel that decide the structure of a program. Kernels of one node for different sizes mostly
// share them.
struct Needs {
    std::vector<std::pair<int, int>> inplace;
    std::vector<int> packed;
    std::vector<std::string> layouts;  // of the packed inputs
    std::vector<bool> optional;        // for each input, then for each output
    std::size_t inputs;
    bool has_scratch;

    explicit Needs(const Kernel& kernel);
    bool operator==(const Needs& other) const = default;
    // Whether these are the needs of a kernel. It is faster than to make and compare them.
    bool are_of(const Kernel& kernel) const;
};

// All different needs of the kernels of a template.
class NeedsTable {
  public:
    // Returns the number of a kernel's needs. `likely`: the number that they probably have.
    std::uint32_t number_of(const Kernel& kernel, std::uint32_t likely);
    const Needs& operator[](std::uint32_t number) const { return all_[number]; }

  private:
    std::vector<Needs> all_;
};

// A kernel for certain sizes, and its properties that a program needs.
struct SizedKernel {
    std::unique_ptr<const Kernel> owned;  // null if `object` owns the kernel
    nb::object object;
    const Kernel* kernel;
    std::size_t scratch_bytes;
    std::uint32_t needs;  // their number in a NeedsTable
};

using SizedKernelPtr = std::shared_ptr<const SizedKernel>;

// Makes the kernels of nodes with equal operators and types, and caches the most recently used ones.
class SizedStep {
  public:
    // `factory`: a KernelFactory, or None. `mentioned`: positions of the sizes on which the kernels depend. If they are
    // at least as many as the symbols, each program has other kernels, so that only the latest kernel is cached.
    SizedStep(nb::object factory, Places mentioned, ShapePlaces inputs, ShapePlaces outputs, std::size_t symbols);

    // Returns the cached kernel, that of the factory or, if the factory makes none, the result of `make`: a Kernel, or
    // None if the nodes need no kernel for these sizes. The result is then null.
    template <typename Make>
    SizedKernelPtr at(const Dims& sizes, std::size_t kept, NeedsTable& table, const Make& make) {
        if (!recent_.empty() && are_at(recent_.front().sizes, sizes)) {
            return recent_.front().kernel;
        }
        Dims key = sizes_at(mentioned_, sizes);
        const bool looks_up = mentions_less_ && kept > 1;
        if (!looks_up) {
            SizedKernelPtr kernel = any_made(sizes, table, make);
            keep_one(std::move(key), kernel);
            return kernel;
        }
        if (const auto found = by_sizes_.find(key); found != by_sizes_.end()) {
            recent_.splice(recent_.begin(), recent_, *found);
            return recent_.front().kernel;
        }
        SizedKernelPtr kernel = any_made(sizes, table, make);
        // Meanwhile, another thread may have done the same.
        if (by_sizes_.find(key) != by_sizes_.end()) {
            return kernel;
        }
        keep(std::move(key), kernel, kept);
        return kernel;
    }

    // Returns the sizes of the cached kernels, least recently used first.
    std::vector<Dims> kept() const;

  private:
    struct Cached {
        Dims sizes;
        SizedKernelPtr kernel;
    };
    using Recent = std::list<Cached>;
    struct Hash : DimsHash {
        using DimsHash::operator();
        std::size_t operator()(Recent::const_iterator cached) const { return operator()(cached->sizes); }
    };
    struct Equal {
        using is_transparent = void;
        bool operator()(Recent::const_iterator a, Recent::const_iterator b) const { return a->sizes == b->sizes; }
        bool operator()(const Dims& a, Recent::const_iterator b) const { return a == b->sizes; }
        bool operator()(Recent::const_iterator a, const Dims& b) const { return a->sizes == b; }
    };

    // Whether these are the mentioned ones of all sizes.
    bool are_at(const Dims& mentioned, const Dims& sizes) const {
        return std::equal(mentioned_.begin(), mentioned_.end(), mentioned.begin(),
                          [&](std::size_t place, std::int64_t size) { return sizes.at(place) == size; });
    }
    // Returns the kernel of the factory, or that of `make`.
    template <typename Make>
    SizedKernelPtr any_made(const Dims& sizes, NeedsTable& table, const Make& make) {
        SizedKernelPtr kernel = made(sizes, table);
        if (kernel != nullptr) {
            return kernel;
        }
        nb::object object = make();
        if (object.is_none()) {
            return nullptr;
        }
        const auto* found = nb::cast<const Kernel*>(object);
        return sized(nullptr, std::move(object), *found, table);
    }
    // Returns the factory's kernel, or null if there is none.
    SizedKernelPtr made(const Dims& sizes, NeedsTable& table);
    SizedKernelPtr sized(std::unique_ptr<const Kernel> owned, nb::object object, const Kernel& kernel,
                         NeedsTable& table);
    void keep(Dims&& sizes, SizedKernelPtr kernel, std::size_t kept);
    void keep_one(Dims&& sizes, SizedKernelPtr kernel);

    nb::object factory_;  // owns made_by_
    const KernelFactory* made_by_;
    Places mentioned_;
    bool mentions_less_;  // whether programs for different sizes may have the same kernel
    ShapePlaces inputs_, outputs_;
    // The shapes of the latest kernel, whose memory is used again. Empty while a kernel is made.
    Shapes input_shapes_, output_shapes_;
    std::uint32_t needs_ = 0;  // of the latest kernel
    Recent recent_;            // most recently used first
    std::unordered_set<Recent::iterator, Hash, Equal> by_sizes_;
};

}  // namespace graphkit
