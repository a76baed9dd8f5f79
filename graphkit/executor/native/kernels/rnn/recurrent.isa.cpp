// Recurrent cells for the instruction set of this translation unit.
#include "kernels/rnn/recurrent_tiles.h"

namespace graphkit {
namespace {

// --- the input's product ---------------------------------------------------------------------------

template <int V, int Split>
void project_rows(const ProjectionBlock& b) {
    for_tiles(0, b.rows, [&]<int Rows>(std::int64_t first) {
        const float* left[Rows];
        float* target[Rows];
        Row<V> sums[Rows];
        for (int r = 0; r < Rows; ++r) {
            const std::int64_t step = (first + r) / b.batch;
            const std::int64_t sequence = b.batch_begin + (first + r) % b.batch;
            left[r] = b.x + step * b.x_step + sequence * b.x_sequence;
            target[r] = b.target + step * b.target_step + sequence * V * kUnits;
            for (int v = 0; v < V; ++v) {
                sums[r][v] = load((b.start != nullptr ? b.start : target[r]) + v * kUnits);
            }
        }
        multiply<V, Rows, Split>(left, b.depth, b.panel, sums);
        for (int r = 0; r < Rows; ++r) {
            for (int v = 0; v < V; ++v) {
                store(target[r] + v * kUnits, sums[r][v]);
            }
        }
    });
}

template <int V>
void project_split(const ProjectionBlock& b) {
    b.split == 1 ? project_rows<V, 1>(b) : project_rows<V, kMaxSplit>(b);
}

void project(const ProjectionBlock& b) {
    switch (b.vectors) {
        case 1:
            return project_split<1>(b);
        case 3:
            return project_split<3>(b);
        case 4:
            return project_split<4>(b);
        default:
            __builtin_unreachable();
    }
}

// --- one step --------------------------------------------------------------------------------------

// Stores the vector of units; only those that exist.
inline void keep(const CellBlock& b, float* to, Floats v) {
    b.units == kUnits ? store(to, v) : store_part(to, v, b.units);
}

// Number of vectors of the product with h that one pass computes.
constexpr int products(CellKind kind) {
    switch (kind) {
        case CellKind::lstm:
            return 4;
        case CellKind::gru_linear:
            return 3;
        case CellKind::gru_gates:
            return 2;
        case CellKind::rnn:
        case CellKind::gru_output:
            break;
    }
    return 1;
}

// Returns what the product with h is added to: the input's part of the gate or, if the last gate of a GRU has its own
// product, its bias.
template <CellKind Kind>
inline Floats start(const CellBlock& b, const float* projected, int v) {
    if constexpr (Kind == CellKind::gru_linear) {
        return v == 2 ? load(b.bias) : load(projected + v * kUnits);
    } else if constexpr (Kind == CellKind::gru_output) {
        return load(b.bias);
    }
    return load(projected + v * kUnits);
}

// Returns the new h of sequence r, computed from its gates, and updates c.
template <CellKind Kind>
inline Floats cell(const CellBlock& b, std::int64_t r, const float* projected, const Floats (&gates)[products(Kind)]) {
    const auto& [f, g, output] = b.functions;
    const std::int64_t at = r * b.state_step;
    if constexpr (Kind == CellKind::rnn) {
        return apply(f, clipped(gates[0], b.clip));
    } else if constexpr (Kind == CellKind::lstm) {
        const float* p = b.peepholes;
        const Floats before = load(b.c + at);
        const Floats in = p == nullptr ? gates[0] : gates[0] + load(p) * before;
        const Floats i = apply(f, clipped(in, b.clip));
        Floats kept = 1.0F - i;
        if (!b.input_forget) {
            kept = apply(f, clipped(p == nullptr ? gates[2] : gates[2] + load(p + 2 * kUnits) * before, b.clip));
        }
        const Floats c = kept * before + i * apply(g, clipped(gates[3], b.clip));
        const Floats o = p == nullptr ? gates[1] : gates[1] + load(p + kUnits) * c;
        if (b.saved_c != nullptr) {
            keep(b, b.saved_c + r * b.saved_step, before);
        }
        const bool goes_on = b.lengths == nullptr || b.time < b.lengths[r];
        store(b.c + at, goes_on ? c : before);
        return apply(f, clipped(o, b.clip)) * apply(output, c);
    } else {
        Floats update;
        Floats recurrent;
        if constexpr (Kind == CellKind::gru_linear) {
            update = apply(f, clipped(gates[0], b.clip));
            recurrent = apply(f, clipped(gates[1], b.clip)) * gates[2];
        } else {
            update = load(b.c + at);
            recurrent = gates[0];
        }
        const Floats linear = load(projected + 2 * kUnits) + recurrent;
        if (b.saved_gates != nullptr) {
            keep(b, b.saved_gates + r * b.saved_gates_step + 2 * b.depth, linear);
        }
        const Floats fresh = apply(g, clipped(linear, b.clip));
        return (1.0F - update) * fresh + update * load(b.h + at);
    }
}

// Stores the state and the result of a sequence. After the sequence's last step, the state does not change and the
// result is 0.
inline void finish(const CellBlock& b, std::int64_t r, Floats h) {
    const std::int64_t at = r * b.state_step;
    Floats y = h;
    if (b.lengths != nullptr && b.time >= b.lengths[r]) {
        h = load(b.h + at);
        y = Floats{};
    }
    store(b.h_next + at, h);
    if (b.y != nullptr) {
        keep(b, b.y + r * b.y_step, y);
    }
}

// Saves what the gradient reads: the sums after the product with h, and the state before the step. The last gate of a
// GRU is saved elsewhere (see `cell`), but the product of r for it is saved here, after the gates.
template <CellKind Kind>
inline void save(const CellBlock& b, std::int64_t r, const Floats (&gates)[products(Kind)]) {
    if (Kind == CellKind::gru_output) {
        return;
    }
    if (b.saved_gates != nullptr) {
        for (int v = 0; v < products(Kind); ++v) {
            const int place = Kind == CellKind::gru_linear && v == 2 ? 3 : v;
            keep(b, b.saved_gates + r * b.saved_gates_step + place * b.depth, gates[v]);
        }
    }
    if (b.saved_h != nullptr) {
        keep(b, b.saved_h + r * b.saved_step, load(b.h + r * b.state_step));
    }
}

// Computes the state of sequence r from its gates. Not inlined: compilers may round a sum of two products in two ways,
// and all calls must give the same bits.
template <CellKind Kind>
[[gnu::noinline]] void update_state(const CellBlock& b, std::int64_t r, const Floats (&gates)[products(Kind)]) {
    save<Kind>(b, r, gates);
    finish(b, r, cell<Kind>(b, r, b.projected + r * b.projected_step, gates));
}

template <CellKind Kind, int Split>
void step_rows(const CellBlock& b) {
    constexpr int V = products(Kind);
    for_tiles(b.begin, b.end, [&]<int Rows>(std::int64_t first) {
        const float* left[Rows];
        Row<V> gates[Rows];
        for (int r = 0; r < Rows; ++r) {
            left[r] = b.left + (first + r) * b.state_step;
            for (int v = 0; v < V; ++v) {
                gates[r][v] = start<Kind>(b, b.projected + (first + r) * b.projected_step, v);
            }
        }
        multiply<V, Rows, Split>(left, b.depth, b.panel, gates);
        for (int i = 0; i < Rows; ++i) {
            const std::int64_t r = first + i;
            if constexpr (Kind == CellKind::gru_gates) {
                save<Kind>(b, r, gates[i]);
                const std::int64_t at = r * b.state_step;
                store(b.c + at, apply(b.functions[0], clipped(gates[i][0], b.clip)));
                store(b.reset + at, apply(b.functions[0], clipped(gates[i][1], b.clip)) * load(b.h + at));
            } else {
                update_state<Kind>(b, r, gates[i]);
            }
        }
    });
}

// Adds the products with h to `projected`.
template <CellKind Kind, int Split>
void add_sums(const CellBlock& b) {
    constexpr int V = products(Kind);
    for_tiles(b.begin, b.end, [&]<int Rows>(std::int64_t first) {
        const float* left[Rows];
        Row<V> gates[Rows];
        for (int r = 0; r < Rows; ++r) {
            left[r] = b.left + (first + r) * b.state_step;
            for (int v = 0; v < V; ++v) {
                gates[r][v] = load(b.projected + (first + r) * b.projected_step + v * kUnits);
            }
        }
        multiply<V, Rows, Split>(left, b.depth, b.panel, gates);
        for (int r = 0; r < Rows; ++r) {
            for (int v = 0; v < V; ++v) {
                store(b.projected + (first + r) * b.projected_step + v * kUnits, gates[r][v]);
            }
        }
    });
}

template <CellKind Kind>
void update_states(const CellBlock& b) {
    constexpr int V = products(Kind);
    for (std::int64_t r = b.begin; r < b.end; ++r) {
        const float* projected = b.projected + r * b.projected_step;
        Row<V> gates;
        for (int v = 0; v < V; ++v) {
            gates[v] = load(projected + v * kUnits);
        }
        update_state<Kind>(b, r, gates);
    }
}

template <CellKind Kind>
void step_split(const CellBlock& b) {
    if constexpr (Kind == CellKind::lstm || Kind == CellKind::rnn) {
        if (b.part == CellPart::sums) {
            return b.split == 1 ? add_sums<Kind, 1>(b) : add_sums<Kind, kMaxSplit>(b);
        }
        if (b.part == CellPart::states) {
            return update_states<Kind>(b);
        }
    }
    b.split == 1 ? step_rows<Kind, 1>(b) : step_rows<Kind, kMaxSplit>(b);
}

void step(const CellBlock& b) {
    switch (b.kind) {
        case CellKind::rnn:
            return step_split<CellKind::rnn>(b);
        case CellKind::lstm:
            return step_split<CellKind::lstm>(b);
        case CellKind::gru_linear:
            return step_split<CellKind::gru_linear>(b);
        case CellKind::gru_gates:
            return step_split<CellKind::gru_gates>(b);
        case CellKind::gru_output:
            return step_split<CellKind::gru_output>(b);
    }
}

}  // namespace

GRAPHKIT_ISA_DEFINE(RecurrentTable, recurrent_table) = {kUnits, &project, &step};

}  // namespace graphkit
