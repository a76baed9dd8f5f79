// The layout of trees, and the traversal of several rows, or of several trees for one row, at the same time. There are
// no data-dependent branches, so that the steps of different lanes do not wait for each other.
#include "kernels/trees/forest.h"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/kernel.h"

namespace graphkit {
namespace {

// Number of levels after which the traversal checks whether all lanes have reached a leaf.
constexpr std::int32_t kUnasked = 3;
constexpr std::int32_t kFeatureMask = 0x7fffffff;
// Marks an unused position.
constexpr std::int32_t kGap = -1;

}  // namespace

template <typename T>
WalkedForest<T>::WalkedForest(const ForestArrays<T>& given, bool has_missing, std::int64_t targets)
    : targets_(targets), has_missing_(has_missing) {
    check(given, targets);
    const std::size_t count = given.limit.size();
    const std::vector<Levels> heights = this->heights(given);
    const std::vector<std::int32_t> order = this->order(given);
    if (order.size() > static_cast<std::size_t>(kFeatureMask)) {
        throw NativeError("a forest of " + std::to_string(count) + " nodes is too large");
    }
    // For each old position, the new one.
    std::vector<std::int32_t> place(count, -1);
    for (std::size_t i = 0; i < order.size(); ++i) {
        if (order[i] != kGap) {
            place[static_cast<std::size_t>(order[i])] = static_cast<std::int32_t>(i);
        }
    }
    nodes_.reserve(order.size());
    first_.reserve(order.size() + 1);
    for (const std::int32_t old : order) {
        if (old == kGap) {
            nodes_.push_back({});
            first_.push_back(static_cast<std::int32_t>(weights_.size()));
            continue;
        }
        const auto i = static_cast<std::size_t>(old);
        const bool is_leaf = given.yes[i] == old;
        const bool has_weight = is_leaf && given.count[i] > 0;
        const auto first = static_cast<std::size_t>(given.first[i]);
        const T limit = !is_leaf ? given.limit[i] : has_weight ? given.weight[first] : T(0);
        // A walk also reads the feature and the children of a leaf.
        const std::int32_t feature = is_leaf ? 0 : given.feature[i];
        const std::int32_t no = is_leaf ? given.yes[i] : given.no[i];
        has_missing_ = has_missing_ || feature < 0;
        nodes_.push_back(
            {limit, feature, {place[static_cast<std::size_t>(given.yes[i])], place[static_cast<std::size_t>(no)]}});
        first_.push_back(static_cast<std::int32_t>(weights_.size()));
        for (std::size_t j = first; j < first + static_cast<std::size_t>(given.count[i]); ++j) {
            weights_.push_back({given.target[j], given.weight[j]});
        }
        if (!is_leaf) {
            last_feature_ = std::max<std::int64_t>(last_feature_, given.feature[i] & kFeatureMask);
        }
    }
    first_.push_back(static_cast<std::int32_t>(weights_.size()));
    for (const std::int32_t root : given.roots) {
        const Levels levels = heights[static_cast<std::size_t>(root)];
        roots_.push_back(place[static_cast<std::size_t>(root)]);
        levels_.push_back(levels);
        depth_ += levels.most / static_cast<double>(given.roots.size());
    }
}

template <typename T>
void WalkedForest<T>::check(const ForestArrays<T>& given, std::int64_t targets) const {
    const std::size_t nodes = given.limit.size(), weights = given.weight.size();
    const auto all = [](const std::vector<std::int32_t>& values, std::size_t size, std::size_t limit) {
        return values.size() == size && std::all_of(values.begin(), values.end(), [limit](std::int32_t value) {
                   return value >= 0 && static_cast<std::size_t>(value) < limit;
               });
    };
    bool fits = given.feature.size() == nodes && given.count.size() == nodes && given.first.size() == nodes;
    fits = fits && all(given.yes, nodes, nodes) && all(given.no, nodes, nodes);
    fits = fits && all(given.roots, given.roots.size(), nodes) && !given.roots.empty();
    fits = fits && all(given.target, weights, static_cast<std::size_t>(targets));
    for (std::size_t i = 0; fits && i < nodes; ++i) {
        const std::int64_t first = given.first[i], count = given.count[i];
        fits = first >= 0 && count >= 0 && first + count <= static_cast<std::int64_t>(weights);
    }
    if (!fits) {
        throw NativeError("the nodes of a forest, their children and their weights do not fit together");
    }
}

// Returns the old positions in the new order. Where a cache line has room for three nodes, it contains a node and its
// children, so that two levels of a traversal read one line.
template <typename T>
std::vector<std::int32_t> WalkedForest<T>::order(const ForestArrays<T>& given) const {
    constexpr std::size_t slots = 64 / sizeof(TreeNode<T>);
    std::vector<std::int32_t> found;
    std::vector<bool> entered(given.limit.size());
    const auto enter = [&](std::int32_t node) {
        if (!entered[static_cast<std::size_t>(node)]) {
            entered[static_cast<std::size_t>(node)] = true;
            found.push_back(node);
        }
    };
    // Nodes that are placed before their children.
    std::vector<std::int32_t> heads;
    const auto children = [&](std::int32_t node) {
        const auto i = static_cast<std::size_t>(node);
        return given.yes[i] == node ? std::pair{kGap, kGap} : std::pair{given.yes[i], given.no[i]};
    };
    for (const std::int32_t root : given.roots) {
        heads.assign(1, root);
        for (std::size_t next = 0; next < heads.size(); ++next) {
            const std::int32_t head = heads[next];
            if (entered[static_cast<std::size_t>(head)]) {
                continue;
            }
            const auto [yes, no] = children(head);
            if (yes == kGap) {
                enter(head);
                continue;
            }
            while (slots >= 3 && found.size() % slots > slots - 3) {
                found.push_back(kGap);
            }
            enter(head);
            for (const std::int32_t child : {yes, no}) {
                enter(child);
                const auto [first, second] = children(child);
                if (first != kGap) {
                    heads.push_back(first);
                    heads.push_back(second);
                }
            }
        }
    }
    return found;
}

// Returns the levels below each node, by a depth-first traversal that visits each node once.
template <typename T>
std::vector<Levels> WalkedForest<T>::heights(const ForestArrays<T>& given) const {
    std::vector<Levels> found(given.limit.size(), {-1, -1});
    std::vector<std::int32_t> pending;
    for (const std::int32_t root : given.roots) {
        pending.push_back(root);
        while (!pending.empty()) {
            const std::int32_t node = pending.back();
            const auto i = static_cast<std::size_t>(node);
            const std::int32_t yes = given.yes[i], no = given.no[i];
            if (yes == node) {
                found[i] = {0, 0};
            }
            if (found[i].most >= 0) {
                pending.pop_back();
                continue;
            }
            const Levels a = found[static_cast<std::size_t>(yes)], b = found[static_cast<std::size_t>(no)];
            if (a.most >= 0 && b.most >= 0) {
                found[i] = {std::min(a.least, b.least) + 1, std::max(a.most, b.most) + 1};
                pending.pop_back();
                continue;
            }
            if (pending.size() > 2 * found.size()) {
                throw NativeError("the nodes of a forest form a cycle");
            }
            if (a.most < 0) {
                pending.push_back(yes);
            }
            if (b.most < 0) {
                pending.push_back(no);
            }
        }
    }
    return found;
}

template <typename T>
template <bool Missing>
void WalkedForest<T>::walk_as(const T* const* x, std::int32_t* at, Levels levels) const {
    const TreeNode<T>* const nodes = nodes_.data();
    std::int32_t now[kLanes];
    std::copy(at, at + kLanes, now);
    const auto step = [&](std::int64_t lane) {
        const TreeNode<T>& node = nodes[now[lane]];
        bool stays;
        if constexpr (Missing) {
            const T value = x[lane][node.feature & kFeatureMask];
            stays = !((value <= node.limit) | ((value != value) & (node.feature < 0)));
        } else {
            stays = !(x[lane][node.feature] <= node.limit);
        }
        return node.child[static_cast<std::size_t>(stays)];
    };
    std::int32_t level = 0;
    for (; level < levels.least; ++level) {
        for (std::int64_t lane = 0; lane < kLanes; ++lane) {
            now[lane] = step(lane);
        }
    }
    while (level < levels.most) {
        for (std::int32_t i = 0; i < kUnasked && level < levels.most; ++i, ++level) {
            for (std::int64_t lane = 0; lane < kLanes; ++lane) {
                now[lane] = step(lane);
            }
        }
        std::int32_t moved = 0;
        for (std::int64_t lane = 0; lane < kLanes && level < levels.most; ++lane) {
            moved |= now[lane] ^ nodes[now[lane]].child[0];
        }
        if (moved == 0) {
            break;
        }
    }
    std::copy(now, now + kLanes, at);
}

template <typename T>
void WalkedForest<T>::walk(const T* const* x, std::int32_t* at, Levels levels) const {
    has_missing_ ? walk_as<true>(x, at, levels) : walk_as<false>(x, at, levels);
}

template class WalkedForest<float>;
template class WalkedForest<double>;

}  // namespace graphkit
