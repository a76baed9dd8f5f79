// Products of float rows with a matrix of 4-bit or 8-bit weights. The weights are widened in registers, and read from
// memory as they are stored.
#include <cstdint>

#include "runtime/isa.h"

namespace graphkit {

// Some rows of a, and the columns of one panel: as many as a vector has lanes.
struct WeightOnlyBlock {
    const float* a;
    std::int64_t a_stride;
    std::int64_t rows;
    std::int64_t terms;
    std::int64_t block;          // number of terms that share a scale
    const std::uint32_t* words;  // [terms of a word][lanes], the first term in the low bits
    const float* scales;         // [blocks][lanes]
    const float* zeros;          // [blocks][lanes]; null if all are zero
    float* y;
    std::int64_t y_stride;
    std::int64_t columns;
    bool is_signed;
};

struct WeightOnlyFunctions {
    std::int64_t lanes;
    void (*four_bits)(const WeightOnlyBlock& block);
    void (*eight_bits)(const WeightOnlyBlock& block);
};

GRAPHKIT_ISA_TABLE(WeightOnlyFunctions, weight_only_functions);

}  // namespace graphkit

#include "kernels/quant/byte_lanes.h"

namespace graphkit {
namespace {

// Converts the terms of a word to floats, one at a time.
template <int Bits, bool Signed>
struct Widened {
    static constexpr int kTermsOfWord = 32 / Bits;
#if defined(__AVX512F__)
    // 4-bit terms by a table lookup, which uses only the low bits of the indices.
    static Reals get(Sums word, int term) {
        if constexpr (Bits == 4) {
            const auto shifted = bit_cast<__m512i>(bit_cast<Vector<std::uint32_t>>(word) >> (4 * term));
            const __m512 table = Signed ? _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1)
                                        : _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            return bit_cast<Reals>(_mm512_permutexvar_ps(shifted, table));
        } else {
            return shifted_out(word, term);
        }
    }
#else
    static Reals get(Sums word, int term) { return shifted_out(word, term); }
#endif
    static Reals shifted_out(Sums word, int term) {
        const Sums high = word << (32 - Bits * (term + 1));
        if constexpr (Signed) {
            return as_reals(high >> (32 - Bits));
        } else {
            return as_reals(bit_cast<Sums>(bit_cast<Vector<std::uint32_t>>(high) >> (32 - Bits)));
        }
    }
};

// Adds the sums of one block of terms. With few rows, there are several independent chains of sums.
template <int Rows, int Chains, typename Of, bool Zeros>
inline void add_block(const WeightOnlyBlock& block, const float* a, const std::uint32_t* words, std::int64_t terms,
                      Reals zero, Reals (&sums)[Rows]) {
    constexpr int kOfWord = Of::kTermsOfWord;
    Reals chains[Rows][Chains] = {};
    std::int64_t done = 0;
    for (; done + kOfWord <= terms; done += kOfWord) {
        const Sums word = bit_cast<Sums>(load(words + done / kOfWord * kSums));
#pragma GCC unroll 8
        for (int term = 0; term < kOfWord; ++term) {
            const Reals w = Zeros ? Of::get(word, term) - zero : Of::get(word, term);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
                chains[r][term % Chains] += w * splat(a[r * block.a_stride + done + term]);
            }
        }
    }
    if (done < terms) {
        const Sums word = bit_cast<Sums>(load(words + done / kOfWord * kSums));
        for (int term = 0; done + term < terms; ++term) {
            const Reals w = Zeros ? Of::shifted_out(word, term) - zero : Of::shifted_out(word, term);
            for (int r = 0; r < Rows; ++r) {
                chains[r][0] += w * splat(a[r * block.a_stride + done + term]);
            }
        }
    }
    for (int r = 0; r < Rows; ++r) {
        sums[r] = chains[r][0];
        for (int c = 1; c < Chains; ++c) {
            sums[r] += chains[r][c];
        }
    }
}

template <int Rows, int Chains, typename Of, bool Zeros>
void rows_of(const WeightOnlyBlock& block, std::int64_t first) {
    const std::int64_t blocks = (block.terms + block.block - 1) / block.block;
    const float* a = block.a + first * block.a_stride;
    Reals totals[Rows] = {};
    const std::uint32_t* words = block.words;
    for (std::int64_t b = 0; b < blocks; ++b) {
        const std::int64_t begin = b * block.block;
        const std::int64_t terms = block.terms - begin < block.block ? block.terms - begin : block.block;
        Reals sums[Rows];
        const Reals zero = Zeros ? load(block.zeros + b * kSums) : Reals{};
        add_block<Rows, Chains, Of, Zeros>(block, a + begin, words, terms, zero, sums);
        words += (terms + Of::kTermsOfWord - 1) / Of::kTermsOfWord * kSums;
        const Reals scale = load(block.scales + b * kSums);
        for (int r = 0; r < Rows; ++r) {
            totals[r] += sums[r] * scale;
        }
    }
    for (int r = 0; r < Rows; ++r) {
        store_reals(block.y + (first + r) * block.y_stride, totals[r], block.columns);
    }
}

template <typename Of, bool Zeros>
void all_rows(const WeightOnlyBlock& block) {
    std::int64_t row = 0;
    for (; row + 6 <= block.rows; row += 6) {
        rows_of<6, 1, Of, Zeros>(block, row);
    }
    for (; row + 2 <= block.rows; row += 2) {
        rows_of<2, 2, Of, Zeros>(block, row);
    }
    if (row < block.rows) {
        rows_of<1, 4, Of, Zeros>(block, row);
    }
}

template <int Bits>
void product(const WeightOnlyBlock& block) {
    // Unsigned weights have no zero points here: see WeightOnlyProduct::middle.
    if (!block.is_signed) {
        return all_rows<Widened<Bits, false>, false>(block);
    }
    block.zeros == nullptr ? all_rows<Widened<Bits, true>, false>(block) : all_rows<Widened<Bits, true>, true>(block);
}

}  // namespace

GRAPHKIT_ISA_DEFINE(WeightOnlyFunctions, weight_only_functions) = {kSums, product<4>, product<8>};

}  // namespace graphkit

#ifdef GRAPHKIT_ONCE
#include <algorithm>
#include <string>

#include "runtime/bindings.h"
#include "runtime/recipe.h"
#include "runtime/threads.h"

namespace graphkit {
namespace {

// y [.., columns] = a [.., terms] times w [columns, terms], dequantised by scale and zero [columns, blocks]. Constant
// operands among the last three come packed, in panels of as many columns as a vector has lanes.
class WeightOnlyProduct final : public Kernel {
  public:
    WeightOnlyProduct(const Dims& a, const Dims& w, const std::string& type, std::int64_t block, int bits, bool zeros,
                      bool packed, int threads);

    std::size_t scratch_bytes() const override { return scratch_; }
    void run(const void* const* inputs, void* const* outputs, std::byte* scratch) const override;
    std::vector<int> packed_inputs() const override;
    std::size_t packed_bytes(int input) const override;
    std::string packed_layout(int input) const override;
    void pack(int input, const void* plain, void* packed) const override;
    std::string implementation() const override {
        return "weights of " + std::to_string(bits_) + " bits:" + isa_name();
    }

  private:
    void pack_words(const std::uint8_t* w, std::uint32_t* words, std::int64_t panel) const;
    void pack_parameters(int input, const void* plain, float* packed) const;
    static constexpr std::int64_t kAhead = kAlignment / sizeof(float);
    std::int64_t terms_of_word() const { return 32 / bits_; }
    // Subtracted from unsigned weights and from their zero points, so that differences of them are small.
    std::uint32_t middle() const {
        return inputs_.size() > 3 && inputs_[1].type == ElementType::u8 ? 1U << (bits_ - 1) : 0U;
    }
    // Number of words of one column.
    std::int64_t words() const {
        const std::int64_t last = terms_ - (blocks_ - 1) * block_;
        return terms_ == 0
                   ? 0
                   : (blocks_ - 1) * (block_ / terms_of_word()) + (last + terms_of_word() - 1) / terms_of_word();
    }

    const WeightOnlyFunctions& functions_;
    std::int64_t rows_, terms_, columns_, block_, blocks_, panels_;
    int bits_;
    bool packed_;
    std::size_t scratch_ = 0;
};

WeightOnlyProduct::WeightOnlyProduct(const Dims& a, const Dims& w, const std::string& type, std::int64_t block,
                                     int bits, bool zeros, bool packed, int threads)
    : Kernel("WeightOnlyProduct", threads > 0 ? threads : default_threads()),
      functions_(weight_only_functions()),
      block_(block),
      bits_(bits),
      packed_(packed) {
    const ElementType kind = element_type(type);
    if (a.empty() || w.size() != 2 || a.back() != w[1] || block < 1 || w[1] == 0 || (bits != 4 && bits != 8)) {
        throw Unsupported("a product of " + to_string(a) + " with weights " + to_string(w));
    }
    columns_ = w[0];
    terms_ = w[1];
    rows_ = count(a) / terms_;
    blocks_ = (terms_ + block - 1) / block;
    if (blocks_ > 1 && block * bits % 32 != 0) {
        throw Unsupported("weights in blocks that are no whole words");
    }
    panels_ = (columns_ + functions_.lanes - 1) / functions_.lanes;
    Dims y(a.begin(), a.end() - 1);
    y.push_back(columns_);
    inputs_ = {{"a", a}, {"w", w, kind}, {"scale", {columns_, blocks_}}};
    if (zeros) {
        inputs_.push_back({"zero", {columns_, blocks_}, kind});
    }
    outputs_ = {{"y", y}};
    for (std::size_t input = 1; !packed_ && input < inputs_.size(); ++input) {
        scratch_ += aligned(packed_bytes(static_cast<int>(input)));
    }
}

std::vector<int> WeightOnlyProduct::packed_inputs() const {
    if (!packed_) {
        return {};
    }
    return inputs_.size() > 3 ? std::vector<int>{1, 2, 3} : std::vector<int>{1, 2};
}

std::size_t WeightOnlyProduct::packed_bytes(int input) const {
    // Packed zero points are preceded by a number that says whether any of them is not zero.
    const std::size_t ahead = input == 3 ? kAlignment : 0;
    return ahead + static_cast<std::size_t>(panels_ * functions_.lanes * (input == 1 ? words() : blocks_)) * 4;
}

std::string WeightOnlyProduct::packed_layout(int input) const {
    return (input == 1 ? "words of " + std::to_string(bits_) + " bits:" : std::string("columns of panels:")) +
           std::to_string(functions_.lanes) +
           to_string({columns_, terms_, block_, static_cast<std::int64_t>(middle())}) + name_of(inputs_[1].type);
}

void WeightOnlyProduct::pack(int input, const void* plain, void* packed) const {
    if (input != 1) {
        return pack_parameters(input, plain, static_cast<float*>(packed));
    }
    const std::int64_t size = words() * functions_.lanes;
    parallel_for(threads(), panels_, static_cast<double>(size), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t p = begin; p < end; ++p) {
            pack_words(static_cast<const std::uint8_t*>(plain), static_cast<std::uint32_t*>(packed) + p * size, p);
        }
    });
}

void WeightOnlyProduct::pack_words(const std::uint8_t* w, std::uint32_t* to, std::int64_t panel) const {
    const std::int64_t lanes = functions_.lanes;
    const std::uint32_t mask = bits_ == 4 ? 15 : 255;
    std::fill_n(to, words() * lanes, 0U);
    for (std::int64_t lane = 0; lane < lanes && panel * lanes + lane < columns_; ++lane) {
        const std::uint8_t* row = w + (panel * lanes + lane) * terms_;
        for (std::int64_t t = 0; t < terms_; ++t) {
            // All blocks but the last one consist of whole words.
            const std::int64_t shift = t % terms_of_word() * bits_;
            to[t / terms_of_word() * lanes + lane] |= ((row[t] ^ middle()) & mask) << shift;
        }
    }
}

void WeightOnlyProduct::pack_parameters(int input, const void* plain, float* packed) const {
    const std::int64_t lanes = functions_.lanes;
    const ElementType type = inputs_[static_cast<std::size_t>(input)].type;
    float* given = packed;
    packed += input == 3 ? kAhead : 0;
    float any = 0;
    for (std::int64_t c = 0; c < panels_ * lanes; ++c) {
        for (std::int64_t b = 0; b < blocks_; ++b) {
            const std::int64_t at = c * blocks_ + b;
            float value = 0;
            if (c < columns_ && type == ElementType::f32) {
                value = static_cast<const float*>(plain)[at];
            } else if (c < columns_) {
                const std::int32_t zero = type == ElementType::u8 ? static_cast<const std::uint8_t*>(plain)[at]
                                                                  : static_cast<const std::int8_t*>(plain)[at];
                value = static_cast<float>(zero - static_cast<std::int32_t>(middle()));
            }
            packed[(c / lanes * blocks_ + b) * lanes + c % lanes] = value;
            any = value != 0 ? 1 : any;
        }
    }
    if (input == 3) {
        *given = any;
    }
}

void WeightOnlyProduct::run(const void* const* inputs, void* const* outputs, std::byte* scratch) const {
    if (rows_ * columns_ == 0) {
        return;
    }
    const void* parts[4] = {inputs[0], inputs[1], inputs[2], inputs_.size() > 3 ? inputs[3] : nullptr};
    auto* free = scratch;
    for (int input = 1; !packed_ && input < static_cast<int>(inputs_.size()); ++input) {
        pack(input, parts[input], free);
        parts[input] = free;
        free += aligned(packed_bytes(input));
    }
    const auto* a = static_cast<const float*>(inputs[0]);
    const auto* zeros = static_cast<const float*>(parts[3]);
    zeros = zeros == nullptr || *zeros == 0 ? nullptr : zeros + kAhead;
    const double cost = 0.06 * static_cast<double>(terms_ * functions_.lanes) * static_cast<double>(rows_ + 1) / 2;
    parallel_for(threads(), panels_, cost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t p = begin; p < end; ++p) {
            const std::int64_t first = p * functions_.lanes;
            WeightOnlyBlock block{};
            block.a = a;
            block.a_stride = terms_;
            block.rows = rows_;
            block.terms = terms_;
            block.block = block_;
            block.words = static_cast<const std::uint32_t*>(parts[1]) + first * words();
            block.scales = static_cast<const float*>(parts[2]) + first * blocks_;
            block.zeros = zeros == nullptr ? nullptr : zeros + first * blocks_;
            block.y = static_cast<float*>(outputs[0]) + first;
            block.y_stride = columns_;
            block.columns = std::min(functions_.lanes, columns_ - first);
            block.is_signed = inputs_[1].type == ElementType::i8 || middle() != 0;
            (bits_ == 4 ? functions_.four_bits : functions_.eight_bits)(block);
        }
    });
}

}  // namespace

static const RecipeKind weight_only_product_recipe(
    "WeightOnlyProduct", +[](WeightOnlyProduct* self, const Dims& a, const Dims& w, const std::string& type,
                             std::int64_t block, int bits, bool zeros, bool packed, int threads) {
        new (self) WeightOnlyProduct(a, w, type, block, bits, zeros, packed, threads);
    });

GRAPHKIT_BINDINGS(weight_only) {
    nb::class_<WeightOnlyProduct, Kernel>(m, "WeightOnlyProduct")
        .def("__init__", weight_only_product_recipe.init(), "a"_a, "w"_a, "type"_a, "block"_a, "bits"_a, nb::kw_only(),
             "zeros"_a = false, "packed"_a = false, "threads"_a = 0);
}

}  // namespace graphkit
#endif
