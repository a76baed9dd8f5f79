// The trees of an ensemble in the layout for traversal: all nodes are in one array, tree after tree, and nodes are
// close to their children.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace graphkit {

// A row goes to `yes` if its feature is at most `limit`, or if the feature is NaN and the sign bit of `feature` is set.
// A leaf is its own child; its `limit` is its weight if there is only one target.
template <typename T>
struct TreeNode {
    T limit;
    std::int32_t feature;
    std::int32_t child[2];  // yes, no
};

// The weight that a leaf adds to the score of a target.
template <typename T>
struct LeafWeight {
    std::int32_t target;
    T weight;
};

// Nodes as the caller gives them, by position. Node i has count[i] weights, from weight first[i] on.
template <typename T>
struct ForestArrays {
    std::vector<T> limit;
    std::vector<std::int32_t> feature, yes, no, roots, first, count, target;
    std::vector<T> weight;
};

// An allocator of memory that begins at a cache line.
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

// Levels below a root: of the shortest and of the longest path.
struct Levels {
    std::int32_t least, most;
};

template <typename T>
class WalkedForest {
  public:
    // Rows, or trees, that are traversed at the same time: as many as the loads that a processor keeps in flight.
    static constexpr std::int64_t kLanes = 8;

    // Throws NativeError for positions outside of the arrays, and for cycles.
    WalkedForest(const ForestArrays<T>& given, bool has_missing, std::int64_t targets);

    std::int64_t trees() const { return static_cast<std::int64_t>(roots_.size()); }
    // The mean number of levels of a tree.
    double depth() const { return depth_; }
    std::int64_t targets() const { return targets_; }
    // The largest feature number that a node tests.
    std::int64_t last_feature() const { return last_feature_; }

    // Traverses the trees: lane i begins at node at[i] with the features x[i]; afterwards, at[i] is its leaf. Each lane
    // has at least `levels.least` levels before it, and at most `levels.most`.
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

    // The arrays from which the forest was made, see recipe.h; "" if they are not known.
    const std::string& recipe() const { return recipe_; }
    void set_recipe(std::string recipe) { recipe_ = std::move(recipe); }

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
    std::int64_t targets_;
    bool has_missing_;
    std::string recipe_;
};

extern template class WalkedForest<float>;
extern template class WalkedForest<double>;

}  // namespace graphkit
