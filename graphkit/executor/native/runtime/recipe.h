// Recipes: how kernels were made, in bytes, so that a saved program can make them again without Python.
//
//     const RecipeKind pad_recipe("Pad", +[](Pad* self, Dims x, const std::string& dtype) { new (self) Pad(...); });
//
// at namespace scope registers how a Pad is made, under the name "Pad". Its binding is
//
//     nb::class_<Pad, Kernel>(m, "Pad").def("__init__", pad_recipe.init(), "x"_a, "dtype"_a);
//
// While recipes are recorded (see RecordRecipes), a kernel that Python makes gets its recipe: the name, and the
// arguments. make_kernel reads a recipe.
//
// If the arguments are those of a constructor, write
//
//     static const RecipeConstructor<Softmax, const Dims&, std::int64_t> softmax_recipe("Softmax");
//
// RecipeFunction does the same for a function that makes kernels.
//
// A file may contain any arguments. So constructors check them: a kernel that was made stays inside of the operands
// that it declares, and of its working memory. make_kernel checks the shapes that it gives to factories, and
// RecipeConstructor its arguments of type Dims, which must be shapes. Others call require_shape.
//
// An argument is a number, a string, bytes, or an optional, vector, pair, tuple, variant or map of arguments. A struct
// whose fields are arguments needs a specialisation of RecipeFields.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/kernel.h"
#include "runtime/kernel_factory.h"
#include "runtime/raw_bytes.h"

namespace graphkit {

// Whether kernels and factories that this thread makes get recipes.
bool records_recipes();
void record_recipes(bool on);

// A recipe could not be read: it is damaged, or another version of graphkit wrote it.
struct BadRecipe : NativeError {
    using NativeError::NativeError;
};

class RecipeWriter {
  public:
    void raw(const void* data, std::size_t bytes) { bytes_.append(static_cast<const char*>(data), bytes); }
    void number(std::uint64_t value) { raw(&value, sizeof value); }
    void text(std::string_view value) {
        number(value.size());
        raw(value.data(), value.size());
    }
    std::string take() { return std::move(bytes_); }

  private:
    std::string bytes_;
};

// Reads what a RecipeWriter wrote. All methods throw BadRecipe at the end of the bytes.
class RecipeReader {
  public:
    explicit RecipeReader(std::string_view bytes) : rest_(bytes) {}

    void raw(void* to, std::size_t bytes) { std::memcpy(to, take(bytes).data(), bytes); }
    std::uint64_t number() {
        std::uint64_t value = 0;
        raw(&value, sizeof value);
        return value;
    }
    // Returns the number of items that follow. Each takes at least one byte, so that a damaged number allocates little.
    std::size_t items();
    std::string_view text() { return take(items()); }
    void end() const;

  private:
    std::string_view take(std::size_t bytes);

    std::string_view rest_;
};

// The fields of a struct, as a tuple of references: static auto of(Struct& value) { return std::tie(value.a, ...); }
// Optionally, static void check(const Struct& value) throws BadRecipe for fields that do not fit together.
template <typename T>
struct RecipeFields;

// Writes and reads one argument.
template <typename T>
struct RecipeCodec {
    static void write(RecipeWriter& to, const T& value) {
        std::apply([&](auto&... field) { (write_field(to, field), ...); }, RecipeFields<T>::of(const_cast<T&>(value)));
    }
    static T read(RecipeReader& from) {
        T value{};
        std::apply([&](auto&... field) { (read_field(from, field), ...); }, RecipeFields<T>::of(value));
        if constexpr (requires { RecipeFields<T>::check(value); }) {
            RecipeFields<T>::check(value);
        }
        return value;
    }

  private:
    template <typename Field>
    static void write_field(RecipeWriter& to, Field& field) {
        RecipeCodec<Field>::write(to, field);
    }
    template <typename Field>
    static void read_field(RecipeReader& from, Field& field) {
        field = RecipeCodec<Field>::read(from);
    }
};

template <typename T>
    requires std::is_integral_v<T> || std::is_floating_point_v<T>
struct RecipeCodec<T> {
    static void write(RecipeWriter& to, T value) {
        if constexpr (std::is_floating_point_v<T>) {
            const auto wide = static_cast<double>(value);
            to.raw(&wide, sizeof wide);
        } else {
            to.number(static_cast<std::uint64_t>(value));
        }
    }
    static T read(RecipeReader& from) {
        if constexpr (std::is_floating_point_v<T>) {
            double wide = 0;
            from.raw(&wide, sizeof wide);
            return static_cast<T>(wide);
        } else {
            const std::uint64_t read = from.number();
            const auto value = static_cast<T>(read);
            if (static_cast<std::uint64_t>(value) != read) {
                throw BadRecipe("a number is out of range");
            }
            return value;
        }
    }
};

// The last enumerator of an enumeration: static constexpr auto value = Kind::last;
template <typename T>
struct RecipeLast;

template <typename T>
    requires std::is_enum_v<T>
struct RecipeCodec<T> {
    static void write(RecipeWriter& to, T value) { to.number(static_cast<std::uint64_t>(value)); }
    static T read(RecipeReader& from) {
        const std::uint64_t value = from.number();
        if (value > static_cast<std::uint64_t>(RecipeLast<T>::value)) {
            throw BadRecipe("an option is out of range");
        }
        return static_cast<T>(value);
    }
};

template <>
struct RecipeCodec<std::string> {
    static void write(RecipeWriter& to, const std::string& value) { to.text(value); }
    static std::string read(RecipeReader& from) { return std::string(from.text()); }
};

template <>
struct RecipeCodec<RawBytes> {
    static void write(RecipeWriter& to, const RawBytes& value) { to.text(value.data); }
    static RawBytes read(RecipeReader& from) { return {std::string(from.text())}; }
};

template <typename T>
struct RecipeCodec<std::optional<T>> {
    static void write(RecipeWriter& to, const std::optional<T>& value) {
        RecipeCodec<bool>::write(to, value.has_value());
        if (value) {
            RecipeCodec<T>::write(to, *value);
        }
    }
    static std::optional<T> read(RecipeReader& from) {
        return RecipeCodec<bool>::read(from) ? std::optional<T>(RecipeCodec<T>::read(from)) : std::nullopt;
    }
};

template <typename T>
struct RecipeCodec<std::vector<T>> {
    static void write(RecipeWriter& to, const std::vector<T>& values) {
        to.number(values.size());
        for (const auto& value : values) {
            RecipeCodec<T>::write(to, value);
        }
    }
    static std::vector<T> read(RecipeReader& from) {
        std::vector<T> values;
        for (std::size_t left = from.items(); left > 0; --left) {
            values.push_back(RecipeCodec<T>::read(from));
        }
        return values;
    }
};

template <typename... Items>
struct RecipeCodec<std::tuple<Items...>> {
    static void write(RecipeWriter& to, const std::tuple<Items...>& value) {
        std::apply([&](const Items&... item) { (RecipeCodec<Items>::write(to, item), ...); }, value);
    }
    static std::tuple<Items...> read(RecipeReader& from) {
        return std::tuple<Items...>{RecipeCodec<Items>::read(from)...};  // braces: from left to right
    }
};

template <typename A, typename B>
struct RecipeCodec<std::pair<A, B>> {
    static void write(RecipeWriter& to, const std::pair<A, B>& value) {
        RecipeCodec<A>::write(to, value.first);
        RecipeCodec<B>::write(to, value.second);
    }
    static std::pair<A, B> read(RecipeReader& from) {
        return std::pair<A, B>{RecipeCodec<A>::read(from), RecipeCodec<B>::read(from)};
    }
};

template <typename... Kinds>
struct RecipeCodec<std::variant<Kinds...>> {
    using Variant = std::variant<Kinds...>;

    static void write(RecipeWriter& to, const Variant& value) {
        to.number(value.index());
        std::visit([&]<typename Kind>(const Kind& kind) { RecipeCodec<Kind>::write(to, kind); }, value);
    }
    static Variant read(RecipeReader& from) {
        using Read = Variant (*)(RecipeReader&);
        static constexpr Read kReads[] = {[](RecipeReader& reader) {
            return Variant(std::in_place_type<Kinds>, RecipeCodec<Kinds>::read(reader));
        }...};
        const std::uint64_t index = from.number();
        if (index >= sizeof...(Kinds)) {
            throw BadRecipe("a value has an unknown type");
        }
        return kReads[index](from);
    }
};

template <typename Key, typename T>
struct RecipeCodec<std::map<Key, T>> {
    static void write(RecipeWriter& to, const std::map<Key, T>& values) {
        to.number(values.size());
        for (const auto& [key, value] : values) {
            RecipeCodec<Key>::write(to, key);
            RecipeCodec<T>::write(to, value);
        }
    }
    static std::map<Key, T> read(RecipeReader& from) {
        std::map<Key, T> values;
        for (std::size_t left = from.items(); left > 0; --left) {
            Key key = RecipeCodec<Key>::read(from);
            values.insert_or_assign(std::move(key), RecipeCodec<T>::read(from));
        }
        return values;
    }
};

// How a kind of kernel or factory is made from the arguments of a recipe.
template <typename Made>
using MakeFromRecipe = std::unique_ptr<Made> (*)(const void* kind, RecipeReader& arguments);

// Throws BadRecipe if a size is negative, or if there are more than 2^46 elements. A size of 0 counts as 1, so that the
// product of any of the sizes does not overflow.
void require_shape(const Dims& shape);

// Adds a kind. If a name is used twice, make_kernel says so.
void add_recipe_kind(const char* name, const void* kind, MakeFromRecipe<Kernel> make);
void add_recipe_kind(const char* name, const void* kind, MakeFromRecipe<KernelFactory> make);

// Returns the names of all kinds.
std::vector<std::string> recipe_names();

// Returns the kernel of a recipe. Throws BadRecipe, or the errors of the kernel's constructor.
std::unique_ptr<Kernel> make_kernel(std::string_view recipe);

// Returns the recipe of the kernel that a factory makes for these shapes.
std::string recipe_from_factory(const std::string& factory, const std::vector<std::optional<Dims>>& inputs,
                                const std::vector<std::optional<Dims>>& outputs);

// Returns a recipe with these arguments.
template <typename... Arguments>
std::string recipe_of(std::string_view name, const Arguments&... arguments) {
    RecipeWriter writer;
    writer.text(name);
    (RecipeCodec<Arguments>::write(writer, arguments), ...);
    return writer.take();
}

// Reads all arguments of a recipe.
template <typename... Arguments>
std::tuple<Arguments...> read_arguments(RecipeReader& from) {
    std::tuple<Arguments...> arguments{RecipeCodec<Arguments>::read(from)...};  // braces: from left to right
    from.end();
    return arguments;
}

// A kind of kernel, or of factory: T. `build` constructs a T in the memory that it gets.
template <typename T, typename... Arguments>
class RecipeKind {
    using Base = std::conditional_t<std::is_base_of_v<Kernel, T>, Kernel, KernelFactory>;

  public:
    RecipeKind(const char* name, void (*build)(T* self, Arguments... arguments)) : name_(name), build_(build) {
        add_recipe_kind(name, this, static_cast<MakeFromRecipe<Base>>(&make));
    }
    RecipeKind(const RecipeKind&) = delete;
    RecipeKind& operator=(const RecipeKind&) = delete;

    // Returns the "__init__" for Python.
    auto init() const {
        return [this](T* self, Arguments... arguments) {
            std::string recipe;
            if (records_recipes()) {
                recipe = recipe_of<std::remove_cvref_t<Arguments>...>(name_, arguments...);
            }
            build_(self, std::forward<Arguments>(arguments)...);
            if (!recipe.empty()) {
                self->set_recipe(std::move(recipe));
            }
        };
    }

  private:
    static std::unique_ptr<Base> make(const void* kind, RecipeReader& from) {
        auto read = read_arguments<std::remove_cvref_t<Arguments>...>(from);
        return std::apply(
            [&](auto&... argument) {
                std::allocator<T> allocator;
                T* const memory = allocator.allocate(1);
                try {
                    static_cast<const RecipeKind*>(kind)->build_(memory, std::forward<Arguments>(argument)...);
                } catch (...) {
                    allocator.deallocate(memory, 1);
                    throw;
                }
                return std::unique_ptr<Base>(memory);
            },
            read);
    }

    const char* name_;
    void (*build_)(T* self, Arguments... arguments);
};

// A kind that is made by a constructor with these arguments. Those of type Dims are shapes.
template <typename T, typename... Arguments>
class RecipeConstructor : public RecipeKind<T, Arguments...> {
  public:
    explicit RecipeConstructor(const char* name) : RecipeKind<T, Arguments...>(name, &build) {}

  private:
    static void build(T* self, Arguments... arguments) {
        (check(arguments), ...);
        new (self) T(std::forward<Arguments>(arguments)...);
    }
    template <typename Argument>
    static void check(const Argument& argument) {
        if constexpr (std::is_same_v<Argument, Dims>) {
            require_shape(argument);
        }
    }
};

// A function that makes kernels, which may be of different classes.
template <typename... Arguments>
class RecipeFunction {
  public:
    RecipeFunction(const char* name, std::unique_ptr<Kernel> (*function)(Arguments... arguments))
        : name_(name), function_(function) {
        add_recipe_kind(name, this, static_cast<MakeFromRecipe<Kernel>>(&make));
    }
    RecipeFunction(const RecipeFunction&) = delete;
    RecipeFunction& operator=(const RecipeFunction&) = delete;

    // Returns the function for Python.
    auto call() const {
        return [this](Arguments... arguments) {
            std::string recipe;
            if (records_recipes()) {
                recipe = recipe_of<std::remove_cvref_t<Arguments>...>(name_, arguments...);
            }
            std::unique_ptr<Kernel> made = function_(std::forward<Arguments>(arguments)...);
            if (made != nullptr && !recipe.empty()) {
                made->set_recipe(std::move(recipe));
            }
            return made;
        };
    }

  private:
    static std::unique_ptr<Kernel> make(const void* kind, RecipeReader& from) {
        auto read = read_arguments<std::remove_cvref_t<Arguments>...>(from);
        return std::apply(
            [&](auto&... argument) {
                return static_cast<const RecipeFunction*>(kind)->function_(std::forward<Arguments>(argument)...);
            },
            read);
    }

    const char* name_;
    std::unique_ptr<Kernel> (*function_)(Arguments... arguments);
};

}  // namespace graphkit
