// The trees of an ensemble as they are walked: all nodes in one array, tree after tree, a node beside its children.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace graphkit {

// Rows of features go to `yes` whose feature is at most `limit`, or where it is NaN and the sign bit of `feature` is
// set. A leaf is its own child; its `limit` is the weight that it has for the only target.
template <typename T>
struct TreeNode {
    T limit;
    std::int32_t feature;
    std::int32_t child[2];  // yes, no
};

// What a leaf adds to the score of a target.
template <typename T>
struct LeafWeight {
    std::int32_t target;
    T weight;
};

// Nodes as they are given, by position, and the weights of node i: count[i] of them from first[i] on.
template <typename T>
struct ForestArrays {
    std::vector<T> limit;
    std::vector<std::int32_t> feature, yes, no, roots, first, count, target;
    std::vector<T> weight;
};

// Memory that begins with a line of the cache.
template <typename T>
struct LineAllocator {
    using value_type = T;
    static constexpr std::align_val_t kLine{64};

    LineAllocator() = default;
    template <typename U>
    explicit LineAllocator(const LineAllocator<U>&) {}
    T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kLine)); }
    void deallocate(T* memory, std::size_t) { ::operator delete(memory, kLine); }
    bool operator==(const LineAllocator&) const { return true; }
};

// Levels below a root: those that every path has, and those of the longest.
struct Levels {
    std::int32_t least, most;
};

template <typename T>
class WalkedForest {
  public:
    // Rows, or trees, that are walked at the same time: as many loads as a processor has under way.
    static constexpr std::int64_t kLanes = 8;

    // Throws NativeError for positions outside of the arrays. Children must not lead back to their parents.
    WalkedForest(const ForestArrays<T>& given, bool has_missing, std::int64_t targets);

    std::int64_t trees() const { return static_cast<std::int64_t>(roots_.size()); }
    // The mean number of levels of a tree.
    double depth() const { return depth_; }
    // The last feature that is asked for.
    std::int64_t last_feature() const { return last_feature_; }

    // The leaf of each lane, which begins at node `at` with the features `x`. All lanes have at least `levels.least`
    // levels before them, and at most `levels.most`.
    void walk(const T* const* x, std::int32_t* at, Levels levels) const;

    std::int32_t root(std::int64_t tree) const { return roots_[static_cast<std::size_t>(tree)]; }
    Levels levels(std::int64_t tree) const { return levels_[static_cast<std::size_t>(tree)]; }
    T weight(std::int32_t leaf) const { return nodes_[static_cast<std::size_t>(leaf)].limit; }
    const LeafWeight<T>* weights(std::int32_t leaf) const {
        return weights_.data() + first_[static_cast<std::size_t>(leaf)];
    }
    const LeafWeight<T>* weights_end(std::int32_t leaf) const {
        return weights_.data() + first_[static_cast<std::size_t>(leaf) + 1];
    }

  private:
    void check(const ForestArrays<T>& given, std::int64_t targets) const;
    std::vector<Levels> heights(const ForestArrays<T>& given) const;
    template <bool Missing>
    void walk_as(const T* const* x, std::int32_t* at, Levels levels) const;

    std::vector<std::int32_t> order(const ForestArrays<T>& given) const;

    std::vector<TreeNode<T>, LineAllocator<TreeNode<T>>> nodes_;
    std::vector<std::int32_t> roots_;
    std::vector<Levels> levels_;
    std::vector<std::int32_t> first_;
    std::vector<LeafWeight<T>> weights_;
    std::int64_t last_feature_ = -1;
    double depth_ = 0;
    bool has_missing_;
};

extern template class WalkedForest<float>;
extern template class WalkedForest<double>;

}  // namespace graphkit
