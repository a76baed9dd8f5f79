#include "runtime/recipe.h"

#include <algorithm>
#include <functional>

#include "runtime/make_factory.h"

namespace graphkit {
namespace {

constexpr const char* kFromFactory = "from factory";
constexpr std::int64_t kMostElements = std::int64_t{1} << 46;
// The same for an array without elements. Loops over its other sizes may compute nothing for a long time.
constexpr std::int64_t kMostEmpty = std::int64_t{1} << 31;
// Most threads of a kernel. Working memory may be a multiple of it.
constexpr int kMostThreads = 1024;

// How a kind of kernel or factory is made; one of the two functions is null.
struct Kind {
    const void* kind;
    MakeFromRecipe<Kernel> kernel;
    MakeFromRecipe<KernelFactory> factory;
};

struct Kinds {
    std::map<std::string, Kind, std::less<>> by_name;
    std::string twice;  // a name that two kinds have
};

Kinds& kinds() {
    static Kinds& all = *new Kinds;  // filled by static initializers, in any order; never destroyed
    return all;
}

void add(const char* name, Kind kind) {
    if (!kinds().by_name.try_emplace(name, kind).second) {
        kinds().twice = name;
    }
}

const Kind& kind_of(RecipeReader& from) {
    if (!kinds().twice.empty()) {
        throw NativeError("two kinds of kernels are named " + kinds().twice);
    }
    const std::string name(from.text());
    const auto found = kinds().by_name.find(name);
    if (found == kinds().by_name.end()) {
        throw BadRecipe("there is no kernel named '" + name + "'");
    }
    return found->second;
}

// Throws BadRecipe if a factory cannot get these shapes.
void require_shapes(const Shapes& shapes) {
    for (const auto& shape : shapes) {
        if (shape) {
            require_shape(*shape);
        }
    }
}

void require_threads(const Kernel& kernel) {
    if (kernel.threads() < 1 || kernel.threads() > kMostThreads) {
        throw BadRecipe(kernel.describe() + ": the number of threads is out of range");
    }
}

thread_local bool recording = false;

}  // namespace

bool records_recipes() {
    return recording;
}

void record_recipes(bool on) {
    recording = on;
}

std::size_t RecipeReader::items() {
    const std::uint64_t count = number();
    if (count > rest_.size()) {
        throw BadRecipe("a list is longer than the rest of the recipe");
    }
    return static_cast<std::size_t>(count);
}

void RecipeReader::end() const {
    if (!rest_.empty()) {
        throw BadRecipe("the recipe is longer than its arguments");
    }
}

std::string_view RecipeReader::take(std::size_t bytes) {
    if (bytes > rest_.size()) {
        throw BadRecipe("the recipe ends early");
    }
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
}

void require_shape(const Dims& shape) {
    std::int64_t elements = 1;
    const bool is_empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
    const std::int64_t most = is_empty ? kMostEmpty : kMostElements;
    for (const std::int64_t size : shape) {
        if (size < 0) {
            throw BadRecipe("the shape " + to_string(shape) + " has a negative size");
        }
        if (__builtin_mul_overflow(elements, size == 0 ? 1 : size, &elements) || elements > most) {
            throw BadRecipe("the shape " + to_string(shape) + " is too large");
        }
    }
}

std::vector<std::string> recipe_names() {
    std::vector<std::string> names;
    for (const auto& [name, kind] : kinds().by_name) {
        names.push_back(name);
    }
    return names;
}

void add_recipe_kind(const char* name, const void* kind, MakeFromRecipe<Kernel> make) {
    add(name, {kind, make, nullptr});
}

void add_recipe_kind(const char* name, const void* kind, MakeFromRecipe<KernelFactory> make) {
    add(name, {kind, nullptr, make});
}

std::string recipe_from_factory(const std::string& factory, const Shapes& inputs, const Shapes& outputs) {
    RecipeWriter writer;
    writer.text(kFromFactory);
    writer.text(factory);
    RecipeCodec<Shapes>::write(writer, inputs);
    RecipeCodec<Shapes>::write(writer, outputs);
    return writer.take();
}

std::unique_ptr<KernelFactory> make_factory(std::string_view recipe) {
    RecipeReader from(recipe);
    const Kind& kind = kind_of(from);
    if (kind.factory == nullptr) {
        throw BadRecipe("the recipe names a kernel instead of a factory");
    }
    return kind.factory(kind.kind, from);
}

std::unique_ptr<Kernel> make_checked_kernel(const KernelFactory& factory, const Shapes& inputs, const Shapes& outputs) {
    require_shapes(inputs);
    require_shapes(outputs);
    std::unique_ptr<Kernel> made = factory.make(inputs, outputs);
    if (made == nullptr) {
        made = factory.make_slowly(inputs, outputs);
    }
    if (made != nullptr) {
        require_threads(*made);
    }
    return made;
}

std::unique_ptr<Kernel> make_kernel(std::string_view recipe) {
    RecipeReader from(recipe);
    RecipeReader ahead = from;
    std::unique_ptr<Kernel> made;
    if (ahead.text() == kFromFactory) {
        const std::string_view factory = ahead.text();
        const auto inputs = RecipeCodec<Shapes>::read(ahead);
        const auto outputs = RecipeCodec<Shapes>::read(ahead);
        ahead.end();
        made = make_checked_kernel(*make_factory(factory), inputs, outputs);
    } else {
        const Kind& kind = kind_of(from);
        if (kind.kernel == nullptr) {
            throw BadRecipe("the recipe names a factory instead of a kernel");
        }
        made = kind.kernel(kind.kind, from);
    }
    if (made == nullptr) {
        throw BadRecipe("there is no kernel for these shapes");
    }
    require_threads(*made);
    return made;
}

}  // namespace graphkit
