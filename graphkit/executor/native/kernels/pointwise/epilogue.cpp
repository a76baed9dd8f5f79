#include "kernels/pointwise/epilogue.h"

#include <limits>
#include <unordered_map>

#include "runtime/bindings.h"
#include "runtime/cpu_info.h"

namespace graphkit {
namespace {

// Builds the instructions of a pass, one by one. The values below exist in every pass, whether it reads them or not.
class Steps {
  public:
    enum Value {
        kProduct,
        kBias,
        kResidual,
        kZero,
        kOne,
        kInfinity,
        kScale,
        kWeight,
        kAlpha,
        kBeta,
        kInverse,
        kResults
    };

    Steps(const Epilogue& epilogue, PointwiseSource& source) : source_(source) {
        const Activation activation = epilogue.activation.value_or(Activation{});
        for (const float value : {0.0F, 1.0F, std::numeric_limits<float>::infinity(), epilogue.alpha, epilogue.residual,
                                  activation.alpha, activation.beta, 1 / activation.alpha}) {
            source_.constants.push_back(
                {ElementType::f32, std::string(reinterpret_cast<const char*>(&value), sizeof value)});
        }
    }

    int add(const char* opcode, std::vector<int> operands) {
        source_.instructions.push_back({opcode, std::move(operands)});
        return kResults + static_cast<int>(source_.instructions.size()) - 1;
    }
    // NaN stays NaN. Of two zeros, the bound is returned, as by the library.
    int at_least(int low, int x) { return add("maximum", {low, x}); }
    int at_most(int high, int x) { return add("minimum", {high, x}); }
    int between_zero_and_one(int x) { return at_most(kOne, at_least(kZero, x)); }

  private:
    PointwiseSource& source_;
};

using Apply = int (*)(Steps& steps, const Activation& activation, int x);

template <typename Body>
constexpr auto of_value(Body) {
    return [](Steps& steps, const Activation&, int x) { return Body{}(steps, x); };
}

Apply application_of(const Activation& activation) {
    using S = Steps;
    static const auto& kinds = *new std::unordered_map<std::string, Apply>{
        // never destroyed: runs make kernels
        {"relu", [](S& s, const Activation& a,
                    int x) { return a.alpha == 0 ? s.at_least(S::kZero, x) : s.add("prelu", {x, S::kAlpha}); }},
        {"tanh", of_value([](S& s, int x) { return s.add("tanh", {x}); })},
        {"sigmoid", of_value([](S& s, int x) { return s.add("sigmoid", {x}); })},
        {"gelu", of_value([](S& s, int x) { return s.add("gelu", {x}); })},
        {"gelu_tanh", of_value([](S& s, int x) { return s.add("gelu_tanh", {x}); })},
        {"swish", of_value([](S& s, int x) { return s.add("swish", {x, S::kAlpha}); })},
        {"hard_swish", of_value([](S& s, int x) {
             return s.add("mul", {x, s.between_zero_and_one(s.add("mul_add", {x, S::kAlpha, S::kBeta}))});
         })},
        {"hard_sigmoid",
         of_value([](S& s, int x) { return s.between_zero_and_one(s.add("mul_add", {x, S::kAlpha, S::kBeta})); })},
        {"elu", of_value([](S& s, int x) {
             const int negative = s.add("expm1", {s.at_most(S::kZero, x)});
             return s.add("mul_add", {S::kAlpha, negative, s.at_least(S::kZero, x)});
         })},
        {"clip", of_value([](S& s, int x) { return s.at_most(S::kBeta, s.at_least(S::kAlpha, x)); })},
        {"softplus", of_value([](S& s, int x) {
             return s.add("mul", {s.add("softplus", {s.add("mul", {x, S::kAlpha})}), S::kInverse});
         })},
        {"abs", of_value([](S& s, int x) { return s.add("abs", {x}); })},
        {"sqrt", of_value([](S& s, int x) { return s.add("sqrt", {x}); })},
        {"exp", of_value([](S& s, int x) { return s.add("exp", {x}); })},
        {"square", of_value([](S& s, int x) { return s.add("mul", {x, x}); })},
        {"linear", of_value([](S& s, int x) { return s.add("mul_add", {x, S::kAlpha, S::kBeta}); })},
    };
    const auto found = kinds.find(activation.kind);
    if (found == kinds.end()) {
        throw NativeError("there is no activation '" + activation.kind + "'");
    }
    return found->second;
}

}  // namespace

std::optional<Limits> limits_of(const std::optional<Activation>& activation) {
    Limits limits;
    if (!activation) {
        return limits;
    }
    const auto& [kind, alpha, beta] = *activation;
    if (kind == "clip") {
        limits.low = alpha;
        limits.high = beta;
    } else if (kind != "relu") {
        return std::nullopt;
    } else if (alpha == 0) {
        limits.low = 0;
    } else {
        limits.slope = alpha;
    }
    return limits;
}

Epilogue Epilogue::for_results(std::int64_t count) const {
    Epilogue made = *this;
    const bool dear = activation && (activation->kind == "swish" || activation->kind == "sigmoid");
    // If the result does not fit into a cache, a separate pass would wait for memory.
    const bool cached = count <= last_level_cache() / 2 / static_cast<std::int64_t>(sizeof(float));
    if (applied == Applied::fused && residual == 0 && dear && cached) {
        made.applied = Applied::active;
    }
    return made;
}

PointwiseSource Epilogue::pass(const Dims& shape, ElementType product, ElementType type) const {
    using S = Steps;
    PointwiseSource source{"Epilogue", shape, {{shape, product}}, {}, {}, {}, {}};
    source.inputs.push_back({{shape[1], 1}, type, !bias});
    source.inputs.push_back({shape, type, residual == 0});
    Steps steps(*this, source);
    const auto activate = [&](int x) { return activation ? application_of(*activation)(steps, *activation, x) : x; };
    int x = S::kProduct;
    if (alpha != 1) {
        x = bias ? steps.add("mul_add", {x, S::kScale, S::kBias}) : steps.add("mul", {x, S::kScale});
    } else if (bias) {
        x = steps.add("add", {x, S::kBias});
    }
    if (applied == Applied::repair) {
        // A NaN of the product stays. Where the result became NaN without one, the sum was infinite, since the residual
        // was finite: restore the infinity.
        const int infinite = activate(steps.add("mul", {x, S::kInfinity}));
        const int sound =
            steps.add("select", {steps.add("equal", {S::kResidual, S::kResidual}), S::kResidual, infinite});
        x = steps.add("select", {steps.add("equal", {x, x}), sound, x});
    } else {
        const auto add_residual = [&](bool here) {
            if (here && residual != 0) {
                x = residual == 1 ? steps.add("add", {x, S::kResidual})
                                  : steps.add("mul_add", {S::kResidual, S::kWeight, x});
            }
        };
        add_residual(!residual_last);
        x = activate(x);
        add_residual(residual_last);
    }
    source.outputs = {{x, type}};
    return source;
}

namespace {

Epilogue epilogue(const std::string& activation, float alpha, float beta, bool residual, bool residual_last,
                  bool fused) {
    Epilogue made;
    if (!activation.empty()) {
        made.activation = Activation{activation, alpha, beta};
    }
    made.residual = residual ? 1.0F : 0.0F;
    made.residual_last = residual_last;
    made.applied = fused ? Applied::fused : Applied::after;
    return made;
}

}  // namespace

GRAPHKIT_BINDINGS(epilogue) {
    nb::class_<Epilogue>(
        m, "Epilogue",
        "Operations on a product before it is stored: an activation with oneDNN's alpha and beta, and the sum "
        "with a residual before the activation or last. Not `fused`: in a separate pass of graphkit's own.")
        .def(
            "__init__",
            [](Epilogue* self, const std::string& activation, float alpha, float beta, bool residual,
               bool residual_last,
               bool fused) { new (self) Epilogue(epilogue(activation, alpha, beta, residual, residual_last, fused)); },
            "activation"_a = "", "alpha"_a = 0, "beta"_a = 0, "residual"_a = false, "residual_last"_a = false,
            "fused"_a = true)
        .def("for_results", &Epilogue::for_results, "count"_a,
             "Return this epilogue. If a separate pass is faster for `count` float32 results, which must fit into a "
             "cache, the pass computes swish and sigmoid, and a convolution still adds the bias itself.");
}

}  // namespace graphkit
