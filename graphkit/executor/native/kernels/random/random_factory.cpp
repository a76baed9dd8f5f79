// Factories that make the kernels of random nodes for all sizes.
#include "kernels/random/random.h"
#include "kernels/random/source_recipe.h"
#include "runtime/bindings.h"
#include "runtime/kernel_factory.h"
#include "runtime/recipe.h"

namespace graphkit {
namespace {

using Type = std::optional<std::string>;  // of an operand; no value if it is absent

std::optional<TensorSpec> spec_of(const char* name, const Type& type, const Shapes& shapes, std::size_t position) {
    if (!type) {
        return std::nullopt;
    }
    return TensorSpec{name, present(shapes, position), element_type(*type)};
}

class RandomFillFactory final : public KernelFactory {
  public:
    RandomFillFactory(std::string name, RandomFill::Law law, double first, double second, Type like, ElementType type,
                      const PhiloxSource& source, int threads)
        : name_(std::move(name)),
          law_(law),
          first_(first),
          second_(second),
          like_(std::move(like)),
          type_(type),
          source_(source),
          threads_(threads) {}

    std::unique_ptr<Kernel> make(const Shapes& inputs, const Shapes& outputs) const override {
        std::optional<TensorSpec> like = spec_of("x", like_, inputs, 0);
        if (like) {
            like->optional = true;
        }
        return std::make_unique<RandomFill>(name_, law_, first_, second_, std::move(like), present(outputs, 0), type_,
                                            source_, threads_);
    }

  private:
    std::string name_;
    RandomFill::Law law_;
    double first_, second_;
    Type like_;
    ElementType type_;
    PhiloxSource source_;
    int threads_;
};

class BernoulliFactory final : public KernelFactory {
  public:
    BernoulliFactory(ElementType x_type, ElementType type, const PhiloxSource& source, int threads)
        : x_type_(x_type), type_(type), source_(source), threads_(threads) {}

    std::unique_ptr<Kernel> make(const Shapes& inputs, const Shapes&) const override {
        return std::make_unique<Bernoulli>(present(inputs, 0), x_type_, type_, source_, threads_);
    }

  private:
    ElementType x_type_, type_;
    PhiloxSource source_;
    int threads_;
};

class DropoutFactory final : public KernelFactory {
  public:
    DropoutFactory(ElementType type, Type ratio, Type training, const PhiloxSource& source, int threads)
        : type_(type), ratio_(std::move(ratio)), training_(std::move(training)), source_(source), threads_(threads) {}

    std::unique_ptr<Kernel> make(const Shapes& inputs, const Shapes&) const override {
        return std::make_unique<Dropout>(present(inputs, 0), type_, spec_of("ratio", ratio_, inputs, 1),
                                         spec_of("training_mode", training_, inputs, 2), source_, threads_);
    }

  private:
    ElementType type_;
    Type ratio_, training_;
    PhiloxSource source_;
    int threads_;
};

const RecipeKind fill_recipe(
    "RandomFillFactory", +[](RandomFillFactory* self, Text name, bool normal, double first, double second,
                             const Type& like, Text dtype, const PhiloxSource& source, int threads) {
        new (self) RandomFillFactory(name, normal ? RandomFill::Law::normal : RandomFill::Law::uniform, first, second,
                                     like, element_type(dtype), source, threads);
    });

const RecipeKind bernoulli_factory_recipe(
    "BernoulliFactory", +[](BernoulliFactory* self, Text x_dtype, Text dtype, const PhiloxSource& source, int threads) {
        new (self) BernoulliFactory(element_type(x_dtype), element_type(dtype), source, threads);
    });

const RecipeKind dropout_factory_recipe(
    "DropoutFactory",
    +[](DropoutFactory* self, Text dtype, const Type& ratio, const Type& training, const PhiloxSource& source,
        int threads) { new (self) DropoutFactory(element_type(dtype), ratio, training, source, threads); });

}  // namespace

GRAPHKIT_BINDINGS(random_factory, "random", "sized_kernels") {
    nb::class_<RandomFillFactory, KernelFactory>(m, "RandomFillFactory", "Makes RandomFill kernels.")
        .def("__init__", fill_recipe.init(), "name"_a, "normal"_a, "first"_a, "second"_a, "like"_a.none(), "dtype"_a,
             "source"_a, "threads"_a, "like: the element type of the operand whose shape the result has.");
    nb::class_<BernoulliFactory, KernelFactory>(m, "BernoulliFactory", "Makes Bernoulli kernels.")
        .def("__init__", bernoulli_factory_recipe.init(), "x_dtype"_a, "dtype"_a, "source"_a, "threads"_a);
    nb::class_<DropoutFactory, KernelFactory>(m, "DropoutFactory", "Makes Dropout kernels.")
        .def("__init__", dropout_factory_recipe.init(), "dtype"_a, "ratio"_a.none(), "training"_a.none(), "source"_a,
             "threads"_a);
}

}  // namespace graphkit
