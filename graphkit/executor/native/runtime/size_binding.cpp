#include "runtime/size_binding.h"

#include <algorithm>
#include <cstring>

namespace graphkit {
namespace {

std::string at_node(const std::string& node) {
    return node.empty() ? "" : "node '" + node + "': ";
}

template <typename T>
void write(const Places& elements, const Dims& sizes, std::byte* to) {
    for (const std::size_t place : elements) {
        const std::int64_t size = sizes.at(place);
        const auto element = static_cast<T>(size);
        if (static_cast<std::int64_t>(element) != size) {
            throw BadSizes("an element that is computed from sizes does not fit its type");
        }
        std::memcpy(to, &element, sizeof(T));
        to += sizeof(T);
    }
}

}  // namespace

Dims sizes_at(const Places& places, const Dims& sizes) {
    Dims found;
    found.reserve(places.size());
    for (const std::size_t place : places) {
        found.push_back(sizes.at(place));
    }
    return found;
}

Shapes shapes_at(const ShapePlaces& all, const Dims& sizes) {
    Shapes shapes;
    shapes.reserve(all.size());
    for (const auto& places : all) {
        shapes.push_back(places ? std::optional(sizes_at(*places, sizes)) : std::nullopt);
    }
    return shapes;
}

void write_shapes(const ShapePlaces& all, const Dims& sizes, Shapes& shapes) {
    shapes.resize(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
        if (!all[i]) {
            shapes[i].reset();
            continue;
        }
        if (!shapes[i]) {
            shapes[i].emplace();
        }
        shapes[i]->resize(all[i]->size());
        std::transform(all[i]->begin(), all[i]->end(), shapes[i]->begin(),
                       [&](std::size_t place) { return sizes.at(place); });
    }
}

std::vector<std::int64_t> SizeElements::at(const Dims& sizes) const {
    std::vector<std::int64_t> words(elements.size() + 1);
    auto* const to = reinterpret_cast<std::byte*>(words.data());
    switch (type) {
        case ElementType::i8:
            write<std::int8_t>(elements, sizes, to);
            break;
        case ElementType::i16:
            write<std::int16_t>(elements, sizes, to);
            break;
        case ElementType::i32:
            write<std::int32_t>(elements, sizes, to);
            break;
        case ElementType::i64:
            write<std::int64_t>(elements, sizes, to);
            break;
        case ElementType::u8:
        case ElementType::boolean:
            write<std::uint8_t>(elements, sizes, to);
            break;
        case ElementType::u16:
            write<std::uint16_t>(elements, sizes, to);
            break;
        case ElementType::u32:
            write<std::uint32_t>(elements, sizes, to);
            break;
        case ElementType::u64:
            write<std::uint64_t>(elements, sizes, to);
            break;
        default:
            throw Unsupported(std::string("elements that are computed from sizes are not ") + name_of(type));
    }
    return words;
}

SizeBinding::SizeBinding(Parts parts) : parts_(std::move(parts)) {
    const auto require = [](bool condition, const char* what) {
        if (!condition) {
            throw NativeError(std::string("a template has ") + what);
        }
    };
    const auto known = [&](std::size_t place) { return place < parts_.table.size(); };
    for (const Places& shape : parts_.inputs) {
        require(std::all_of(shape.begin(), shape.end(), known), "an input of an unknown size");
    }
    require(parts_.sources.empty() || has_sources(), "a size without an axis");
    for (const auto& [input, axis] : parts_.sources) {
        require(input < parts_.inputs.size() && axis < parts_.inputs[input].size(),
                "a size of an axis that does not exist");
    }
    for (const EqualSizes& each : parts_.equal) {
        require(known(each.a) && known(each.b), "a condition on an unknown size");
    }
    for (const NonnegativeSize& each : parts_.nonnegative) {
        require(known(each.place), "a condition on an unknown size");
    }
}

std::optional<Dims> SizeBinding::symbols_of(const Shapes& shapes) const {
    if (!has_sources() || shapes.size() != parts_.inputs.size()) {
        return std::nullopt;
    }
    Dims symbols;
    for (const auto& [input, axis] : parts_.sources) {
        if (!shapes[input] || axis >= shapes[input]->size()) {
            return std::nullopt;
        }
        symbols.push_back((*shapes[input])[axis]);
    }
    return symbols;
}

Dims SizeBinding::sizes(const Dims& symbols) const {
    try {
        return parts_.table.values(symbols);
    } catch (const BadInstruction& error) {
        const auto& all = parts_.nonnegative;
        const auto found = std::find_if(all.begin(), all.end(), [&](const NonnegativeSize& each) {
            return parts_.table.depends(each.place, error.instruction);
        });
        throw BadSizes((found == all.end() ? "" : at_node(found->node)) + error.what());
    }
}

std::optional<std::size_t> SizeBinding::misfit(const Shapes& shapes, const Dims& sizes) const {
    for (std::size_t i = 0; i < parts_.inputs.size(); ++i) {
        if (shapes[i] && *shapes[i] != sizes_at(parts_.inputs[i], sizes)) {
            return i;
        }
    }
    return std::nullopt;
}

void SizeBinding::require_conditions(const Dims& sizes) const {
    for (const auto& [a, b, node] : parts_.equal) {
        if (sizes[a] != sizes[b]) {
            throw BadSizes(at_node(node) + "sizes that must be equal are " + std::to_string(sizes[a]) + " and " +
                           std::to_string(sizes[b]));
        }
    }
    for (const auto& [place, node] : parts_.nonnegative) {
        if (sizes[place] < 0) {
            throw BadSizes(at_node(node) + "a size would be " + std::to_string(sizes[place]));
        }
    }
}

}  // namespace graphkit
