// Gradients of recurrent cells for the instruction set of this translation unit.
#include "kernels/rnn/recurrent_tiles.h"

namespace graphkit {
namespace {

// --- slopes ------------------------------------------------------------------------------------------

__attribute__((noinline)) Floats other_slope(const GateActivation& f, Floats x, Floats y, Floats d) {
    const Floats zero{};
    switch (f.kind) {
        case GateFunction::relu:
            return y <= 0.0F ? zero : d;
        case GateFunction::affine:
            return d * f.alpha;
        case GateFunction::leaky_relu:
            return x > 0.0F ? d : d * f.alpha;
        case GateFunction::thresholded_relu:
            return x >= f.alpha ? d : zero;
        case GateFunction::scaled_tanh: {
            const Floats inner = tanh(x * f.beta);
            return d * ((1.0F - inner * inner) * (f.alpha * f.beta));
        }
        case GateFunction::hard_sigmoid:
            return (y <= 0.0F) | (y >= 1.0F) ? zero : d * f.alpha;
        case GateFunction::elu:
            return x > 0.0F ? d : d * (y + f.alpha);
        case GateFunction::softsign: {
            const Floats room = 1.0F - magnitude<float>(y);
            return d * room * room;
        }
        case GateFunction::softplus:
            return d * sigmoid(x);
        case GateFunction::sigmoid:
        case GateFunction::tanh:
            break;
    }
    return f.kind == GateFunction::tanh ? d * (1.0F - y * y) : d * (y * (1.0F - y));
}

// Returns d times the derivative of y = f(x).
inline Floats slope(const GateActivation& f, Floats x, Floats y, Floats d) {
    if (f.kind == GateFunction::sigmoid) {
        return d * (y * (1.0F - y));
    }
    if (f.kind == GateFunction::tanh) {
        return d * (1.0F - y * y);
    }
    return other_slope(f, x, y, d);
}

// The input and the output of an activation.
struct Gate {
    const GateActivation& function;
    float clip;
    Floats linear;
    Floats x;
    Floats y;

    Gate(const GateActivation& f, float bound, Floats value)
        : function(f), clip(bound), linear(value), x(clipped(value, bound)), y(apply(f, x)) {}

    // Returns d times the derivative with respect to `linear`, the input before clipping.
    Floats back(Floats d) const {
        const Floats inner = slope(function, x, y, d);
        return (linear < -clip) | (linear > clip) ? Floats{} : inner;
    }
};

// --- the product -------------------------------------------------------------------------------------

template <int V, int Split>
void product_rows(const GradientProduct& b) {
    for_tiles(b.begin, b.end, [&]<int Rows>(std::int64_t first) {
        const float* left[Rows];
        Row<V> sums[Rows];
        for (int r = 0; r < Rows; ++r) {
            left[r] = b.left + (first + r) * b.left_step;
            for (int v = 0; v < V; ++v) {
                sums[r][v] = b.adds ? load(b.target + (first + r) * b.target_step + v * kUnits) : Floats{};
            }
        }
        multiply<V, Rows, Split>(left, b.depth, b.panel, sums);
        for (int r = 0; r < Rows; ++r) {
            for (int v = 0; v < V; ++v) {
                store(b.target + (first + r) * b.target_step + v * kUnits, sums[r][v]);
            }
        }
    });
}

template <int V>
void product_split(const GradientProduct& b) {
    b.split == 1 ? product_rows<V, 1>(b) : product_rows<V, kMaxSplit>(b);
}

void product(const GradientProduct& b) {
    switch (b.vectors) {
        case 1:
            return product_split<1>(b);
        case 2:
            return product_split<2>(b);
        case 4:
            return product_split<4>(b);
        default:
            __builtin_unreachable();
    }
}

// --- one step ----------------------------------------------------------------------------------------

// One vector of a sequence's units. Only the first `count` of them exist.
struct Place {
    const CellGradient& b;
    std::int64_t r;
    std::int64_t unit;
    std::int64_t count;

    Floats read(const float* from) const { return count == kUnits ? load(from) : load_part(from, count, 0.0F); }
    void write(float* to, Floats v) const { count == kUnits ? store(to, v) : store_part(to, v, count); }

    Floats gate(int number) const { return read(b.gates + r * b.gates_step + number * b.hidden + unit); }
    void put_gate(int number, Floats v) const { write(b.d_gates + r * b.d_gates_step + number * b.hidden + unit, v); }
    Floats before() const { return read(b.before + r * b.hidden + unit); }
    void put_other(Floats v) const {
        if (b.other != nullptr) {
            write(b.other + r * b.hidden + unit, v);
        }
    }
    Floats peephole(int number) const { return read(b.peepholes + number * b.hidden + unit); }
    void put_peephole(int number, Floats v) const { write(b.d_peepholes + (r * 3 + number) * b.hidden + unit, v); }
    float* state(float* states) const { return states + r * b.state_step + unit; }
    Floats dh() const {
        const Floats carried = load(b.dh + r * b.state_step + unit);
        return b.dy == nullptr ? carried : carried + read(b.dy + r * b.dy_step + unit);
    }
};

template <CellKind Kind>
constexpr int kGates = Kind == CellKind::rnn    ? 1
                       : Kind == CellKind::lstm ? 4
                                                : 3;

// For a sequence that has ended: all gradients of this step are 0.
template <CellKind Kind>
inline void skip(const Place& at) {
    for (int v = 0; v < kGates<Kind>; ++v) {
        at.put_gate(v, Floats{});
    }
    if constexpr (Kind == CellKind::gru_linear || Kind == CellKind::gru_gates) {
        at.put_other(Floats{});
    }
    if (Kind == CellKind::lstm && at.b.d_peepholes != nullptr) {
        for (int v = 0; v < 3; ++v) {
            at.put_peephole(v, Floats{});
        }
    }
}

inline void rnn_back(const Place& at) {
    const Gate gate(at.b.functions[0], at.b.clip, at.gate(0));
    at.put_gate(0, gate.back(at.dh()));
    store(at.state(at.b.dh), Floats{});
}

inline void lstm_back(const Place& at) {
    const CellGradient& b = at.b;
    const bool peeps = b.peepholes != nullptr;
    const Floats before = at.before();
    const Floats linear_i = at.gate(0);
    const Floats linear_f = at.gate(2);
    const Gate i(b.functions[0], b.clip, peeps ? linear_i + at.peephole(0) * before : linear_i);
    const Gate f(b.functions[0], b.clip, peeps ? linear_f + at.peephole(2) * before : linear_f);
    const Gate g(b.functions[1], b.clip, at.gate(3));
    const Floats kept = b.input_forget ? 1.0F - i.y : f.y;
    const Floats c = kept * before + i.y * g.y;
    const Floats linear_o = at.gate(1);
    const Gate o(b.functions[0], b.clip, peeps ? linear_o + at.peephole(1) * c : linear_o);
    const Floats shown = apply(b.functions[2], c);

    const Floats dh = at.dh();
    const Floats d_o = o.back(dh * shown);
    Floats dc = load(at.state(b.dc)) + slope(b.functions[2], c, shown, dh * o.y);
    dc = peeps ? dc + d_o * at.peephole(1) : dc;
    const Floats d_i = i.back(dc * (b.input_forget ? g.y - before : g.y));
    const Floats d_f = b.input_forget ? Floats{} : f.back(dc * before);
    at.put_gate(0, d_i);
    at.put_gate(1, d_o);
    at.put_gate(2, d_f);
    at.put_gate(3, g.back(dc * i.y));
    dc = dc * kept;
    store(at.state(b.dc), peeps ? dc + d_i * at.peephole(0) + d_f * at.peephole(2) : dc);
    store(at.state(b.dh), Floats{});
    if (b.d_peepholes != nullptr) {
        at.put_peephole(0, peeps ? d_i * before : Floats{});
        at.put_peephole(1, peeps ? d_o * c : Floats{});
        at.put_peephole(2, peeps ? d_f * before : Floats{});
    }
}

template <CellKind Kind>
inline void gru_back(const Place& at) {
    const CellGradient& b = at.b;
    const Floats h = at.before();
    const Gate reset(b.functions[0], b.clip, at.gate(1));
    if constexpr (Kind == CellKind::gru_output) {
        const Floats d_left = load(b.d_left + at.r * b.state_step + at.unit);
        at.put_gate(1, reset.back(d_left * h));
        float* dh = at.state(b.dh);
        store(dh, load(dh) + d_left * reset.y);
    } else {
        const Gate update(b.functions[0], b.clip, at.gate(0));
        const Gate fresh(b.functions[1], b.clip, at.gate(2));
        const Floats dh = at.dh();
        const Floats d_new = fresh.back(dh * (1.0F - update.y));
        at.put_gate(0, update.back(dh * (h - fresh.y)));
        at.put_gate(2, d_new);
        store(at.state(b.dh), dh * update.y);
        if constexpr (Kind == CellKind::gru_linear) {
            at.put_gate(1, reset.back(d_new * at.gate(3)));
            at.put_other(d_new * reset.y);
        } else {
            at.put_other(reset.y * h);
        }
    }
}

template <CellKind Kind>
void cell_rows(const CellGradient& b) {
    for (std::int64_t r = b.begin; r < b.end; ++r) {
        const bool ended = b.lengths != nullptr && b.time >= b.lengths[r];
        for (std::int64_t unit = 0; unit < b.units; unit += kUnits) {
            const Place at{b, r, unit, b.units - unit < kUnits ? b.units - unit : kUnits};
            if (ended) {
                if constexpr (Kind != CellKind::gru_output) {
                    skip<Kind>(at);
                }
            } else if constexpr (Kind == CellKind::rnn) {
                rnn_back(at);
            } else if constexpr (Kind == CellKind::lstm) {
                lstm_back(at);
            } else {
                gru_back<Kind>(at);
            }
        }
    }
}

void cell_back(const CellGradient& b) {
    switch (b.kind) {
        case CellKind::rnn:
            return cell_rows<CellKind::rnn>(b);
        case CellKind::lstm:
            return cell_rows<CellKind::lstm>(b);
        case CellKind::gru_linear:
            return cell_rows<CellKind::gru_linear>(b);
        case CellKind::gru_gates:
            return cell_rows<CellKind::gru_gates>(b);
        case CellKind::gru_output:
            return cell_rows<CellKind::gru_output>(b);
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(RecurrentGradTable, recurrent_grad_table) = {kUnits, &product, &cell_back};

}  // namespace graphkit
