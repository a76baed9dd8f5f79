// Counts n-grams; ops/text/tfidf.py defines them.
#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "runtime/array.h"

namespace graphkit {
namespace {

std::vector<std::int64_t> integers(nb::handle array, const char* name) {
    const Operand opened = open_operand(array, name, ElementType::i64);
    const auto* data = static_cast<const std::int64_t*>(opened.data);
    return {data, data + opened.elements()};
}

class NgramTable {
  public:
    // Words are numbers below `words`, or -1 for a word that is in no n-gram. `first`: for each word, its number as a
    // prefix, -1 for none; the last entry is for the word -1. `levels`: for each length, the keys (number of the
    // shorter prefix * words + last word) of the prefixes of that length, and for each of them the number of its
    // n-gram, -1 for none. `places`, `weights`: for each n-gram.
    NgramTable(std::int64_t words, nb::handle first, const std::vector<std::pair<nb::object, nb::object>>& levels,
               nb::handle places, nb::handle weights)
        : words_(words), first_(integers(first, "first")), places_(integers(places, "places")) {
        const Operand opened = open_operand(weights, "weights", ElementType::f32);
        const auto* data = static_cast<const float*>(opened.data);
        weights_.assign(data, data + opened.elements());
        for (const auto& [keys, grams] : levels) {
            Level level;
            level.grams = integers(grams, "grams");
            const std::vector<std::int64_t> listed = integers(keys, "keys");
            level.prefixes.reserve(listed.size());
            for (std::size_t i = 0; i < listed.size(); ++i) {
                level.prefixes.emplace(listed[i], static_cast<std::int64_t>(i));
            }
            if (level.grams.size() != listed.size() ||
                std::any_of(level.grams.begin(), level.grams.end(), [&](auto gram) { return gram >= grams_(); })) {
                throw nb::value_error("the keys and n-grams of a level do not fit");
            }
            levels_.push_back(std::move(level));
        }
        if (weights_.size() != places_.size() || first_.size() != static_cast<std::size_t>(words) + 1 ||
            std::any_of(first_.begin(), first_.end(), [&](auto at) {
                return !levels_.empty() && at >= static_cast<std::int64_t>(levels_[0].grams.size());
            })) {
            throw nb::value_error("'first', 'places' or 'weights' do not fit");
        }
    }

    // Counts, in `result`, float32 [rows, places], the n-grams with at least `shortest` words in `x`, int64 [rows,
    // length]. The words of an n-gram are `distance` positions apart. If `assigns`, the weight of an n-gram is written
    // to its place instead of added: in the order of first words, shorter n-grams first.
    void add(nb::handle x, std::int64_t distance, std::size_t shortest, bool assigns, nb::handle result) const {
        const Operand words = open_operand(x, "x", ElementType::i64);
        const Operand counted = open_operand(result, "result", ElementType::f32);
        open_array(result, "result", true);
        if (words.shape.size() != 2 || counted.shape.size() != 2 || words.shape[0] != counted.shape[0] ||
            distance < 1 ||
            std::any_of(
                places_.begin(), places_.end(), [&](auto place) { return place < 0 || place >= counted.shape[1]; })) {
            throw nb::value_error("'x', 'distance' and 'result' do not fit");
        }
        const auto* row = static_cast<const std::int64_t*>(words.data);
        auto* to = static_cast<float*>(const_cast<void*>(static_cast<const void*>(counted.data)));
        std::vector<Prefix> prefixes;
        std::vector<Prefix> hits;
        for (std::int64_t i = 0; i < words.shape[0]; ++i, row += words.shape[1], to += counted.shape[1]) {
            find(row, words.shape[1], distance, shortest, prefixes, hits);
            if (assigns) {
                std::stable_sort(hits.begin(), hits.end(), [](auto a, auto b) { return a.column < b.column; });
            }
            for (const Prefix hit : hits) {
                float& place = to[places_[static_cast<std::size_t>(hit.number)]];
                const float weight = weights_[static_cast<std::size_t>(hit.number)];
                place = assigns ? weight : place + weight;
            }
        }
    }

  private:
    struct Level {
        std::unordered_map<std::int64_t, std::int64_t> prefixes;
        std::vector<std::int64_t> grams;
    };
    struct Prefix {
        std::int64_t column, number;
    };

    std::int64_t grams_() const { return static_cast<std::int64_t>(places_.size()); }

    // Finds the n-grams of a row, in the order of their lengths.
    void find(const std::int64_t* row, std::int64_t length, std::int64_t distance, std::size_t shortest,
              std::vector<Prefix>& prefixes, std::vector<Prefix>& hits) const {
        prefixes.clear();
        hits.clear();
        for (std::int64_t column = 0; column < length; ++column) {
            const std::int64_t word = row[column];
            if (word < -1 || word >= words_) {
                throw nb::value_error("'x' has a number that is no word");
            }
            const std::int64_t prefix = first_[static_cast<std::size_t>(word < 0 ? words_ : word)];
            if (prefix >= 0) {
                prefixes.push_back({column, prefix});
            }
        }
        for (std::size_t size = 1; size <= levels_.size() && !prefixes.empty(); ++size) {
            const Level& level = levels_[size - 1];
            if (size > 1) {
                lengthen(level, row, length, distance * static_cast<std::int64_t>(size - 1), prefixes);
            }
            for (const Prefix prefix : prefixes) {
                const std::int64_t gram = level.grams[static_cast<std::size_t>(prefix.number)];
                if (size >= shortest && gram >= 0) {
                    hits.push_back({prefix.column, gram});
                }
            }
        }
    }

    // Extends each prefix by the word `behind` positions after its first word. Drops prefixes for which no longer
    // prefix exists.
    void lengthen(const Level& level, const std::int64_t* row, std::int64_t length, std::int64_t behind,
                  std::vector<Prefix>& prefixes) const {
        std::size_t kept = 0;
        for (const Prefix prefix : prefixes) {
            const std::int64_t at = prefix.column + behind;
            if (at >= length || row[at] < 0) {
                continue;
            }
            const auto found = level.prefixes.find(prefix.number * words_ + row[at]);
            if (found != level.prefixes.end()) {
                prefixes[kept++] = {prefix.column, found->second};
            }
        }
        prefixes.resize(kept);
    }

    std::int64_t words_;
    std::vector<std::int64_t> first_, places_;
    std::vector<float> weights_;
    std::vector<Level> levels_;
};

}  // namespace
}  // namespace graphkit

GRAPHKIT_BINDINGS(ngrams) {
    using namespace graphkit;
    using Levels = std::vector<std::pair<nb::object, nb::object>>;
    nb::class_<NgramTable>(m, "NgramTable", "The n-grams of a pool of words, and the place and weight of each.")
        .def(nb::init<std::int64_t, nb::handle, const Levels&, nb::handle, nb::handle>(), "words"_a, "first"_a,
             "levels"_a, "places"_a, "weights"_a)
        .def("add", &NgramTable::add, "x"_a, "distance"_a, "shortest"_a, "assigns"_a, "result"_a,
             "Count the n-grams of rows of words in a float32 array. Words of an n-gram are `distance` apart.");
}
