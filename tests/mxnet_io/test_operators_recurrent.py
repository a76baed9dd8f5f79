"""The fused operator RNN, against a loop in numpy and against PyTorch."""

import json

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import InvalidModel
from graphkit.mxnet_io.importer import import_model
from tests.mxnet_io.operator_cases import case, floats, node, symbol, variable
from tests.mxnet_io.operator_checks import check, imported

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
TIME, BATCH, FEATURES, HIDDEN = 5, 3, 4, 2


def parameters(mode, layers, directions, seed=0, projection=None):
    """Weights of the input and of the state of each layer and direction, then the two biases of each."""
    rows, width = GATES[mode] * HIDDEN, projection or HIDDEN
    shapes = []
    for layer in range(layers):
        projected = [(projection, HIDDEN)] if projection else []
        shapes += [(rows, width * directions if layer else FEATURES), (rows, width), *projected] * directions
    shapes += [(rows,)] * 2 * layers * directions
    return [0.7 * floats(*shape, seed=seed + i) for i, shape in enumerate(shapes)]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def step(mode, x, state, w, r, *others, clip=np.inf):
    """One step of a cell. Gates: input, forget, cell, output; or reset, update, new."""
    h = state[0]
    *projection, b, c = others
    i, s = x @ w.T + b, h @ r.T + c
    if mode == "lstm":
        gates = np.split(i + s, 4, -1)
        cell = np.clip(sigmoid(gates[1]) * state[1] + sigmoid(gates[0]) * np.tanh(gates[2]), -clip, clip)
        output = sigmoid(gates[3]) * np.tanh(cell)
        return [projection[0] @ output if projection else output, cell]
    if mode == "gru":
        (ir, iz, inew), (sr, sz, snew) = np.split(i, 3, -1), np.split(s, 3, -1)
        update = sigmoid(iz + sz)
        return [(1 - update) * np.tanh(inew + sigmoid(ir + sr) * snew) + update * h]
    return [np.tanh(i + s) if mode == "rnn_tanh" else np.maximum(i + s, 0)]


def recurrence(mode, x, parts, states, layers, directions, lengths=None, clip=np.inf):
    """Return the outputs and the last states of all layers. x: [time, batch, features]."""
    count = layers * directions
    each = len(parts) // count - 2
    lengths = np.full(x.shape[1], len(x)) if lengths is None else lengths
    last = [np.array(s, np.float64) for s in states]
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            number = layer * directions + direction
            biases = count * each + 2 * number
            cell = [*parts[each * number : each * (number + 1)], *parts[biases : biases + 2]]
            y = np.zeros((*x.shape[:2], states[0].shape[-1]))
            for row, length in enumerate(lengths):
                state = [s[number, row].astype(np.float64) for s in states]
                for t in range(length)[:: -1 if direction else 1]:
                    state = step(mode, x[t, row], state, *cell, clip=clip)
                    y[t, row] = state[0]
                for end, value in zip(last, state, strict=True):
                    end[number, row] = value
            outputs.append(y)
        x = np.concatenate(outputs, -1)
    return [x, *last]


X = floats(TIME, BATCH, FEATURES, seed=9)


def rnn_case(mode, layers=1, directions=1, lengths=None, outputs=True, zero=False, projection=None, clip=None):
    parts = parameters(mode, layers, directions, projection=projection)
    packed = np.concatenate([part.ravel() for part in parts])
    states = [
        (0 if zero else 1) * floats(layers * directions, BATCH, width, seed=20 + i)
        for i, width in enumerate([projection or HIDDEN, HIDDEN][: 1 + (mode == "lstm")])
    ]
    found = recurrence(mode, X, parts, states, layers, directions, lengths, np.inf if clip is None else clip)
    operands = [X, packed, *states] + ([] if lengths is None else [np.int32(lengths)])
    attributes = {"bidirectional": True} if directions == 2 else {}
    if lengths is not None:
        attributes["use_sequence_length"] = True
    if projection:
        attributes["projection_size"] = projection
    if clip is not None:
        attributes |= {"lstm_state_clip_min": -clip, "lstm_state_clip_max": clip, "lstm_state_clip_nan": False}
    return case("RNN", *operands, gives=found if outputs else found[:1], weights=[1], mode=mode, state_size=HIDDEN,
         num_layers=layers,
                state_outputs=outputs, p=0.0, **attributes)  # fmt: skip


MODES = [rnn_case(mode, directions=directions) for mode in GATES for directions in (1, 2)]
LAYERS = [
    rnn_case("lstm", 3), rnn_case("gru", 2, 2), rnn_case("rnn_tanh", 2, 2), rnn_case("lstm", 2, 2, outputs=False),
    rnn_case("lstm", zero=True, outputs=False),
]  # fmt: skip
# MXNet 1.9 reads sequence lengths only on a GPU.
OF_LENGTHS = [
    rnn_case("lstm", 1, 2, [5, 2, 3]),
    rnn_case("gru", 2, 2, [1, 5, 4]),
    rnn_case("rnn_relu", 1, 1, [3, 4, 5]),
]
PROJECTED = [
    rnn_case("lstm", projection=3), rnn_case("lstm", 2, projection=1, zero=True), rnn_case("lstm", 2, 2, projection=3),
    rnn_case("lstm", 1, 2, [5, 2, 3], projection=1),
]  # fmt: skip
# MXNet 1.9 clips states only on a GPU.
CLIPPED = [rnn_case("lstm", 2, clip=0.25), rnn_case("lstm", 1, 2, [1, 5, 4], projection=3, clip=0.1)]


@in_one_item()
@pytest.mark.parametrize("cases", [MODES, LAYERS + OF_LENGTHS, PROJECTED + CLIPPED])
def test_values(cases, tmp_path):
    check(cases, tmp_path)


def gluon_lstm(parts):
    """The symbol that Gluon exports: flattened parameters are concatenated, the initial states are zeros."""
    names = [f"lstm_p{i}" for i in range(len(parts))]
    nodes = [variable("data"), *(variable(name) for name in names)]
    flat = []
    for i, name in enumerate(names, 1):
        nodes.append(node("reshape", f"{name}_flat", [i], shape="(-1,)"))
        flat.append(len(nodes) - 1)
    nodes.append(node("_rnn_param_concat", "params", flat, dim=0, num_args=len(flat)))
    nodes += [node("_zeros", f"begin{i}", [], shape=f"(1, {BATCH}, {HIDDEN})") for i in (0, 1)]
    last = len(nodes)
    attributes = {"mode": "lstm", "num_layers": 1, "state_size": HIDDEN, "state_outputs": True, "p": 0.0}
    nodes.append(node("RNN", "lstm", [0, last - 3, last - 2, last - 1], **attributes))
    return symbol(nodes, [(last, 0)]), dict(zip(names, parts, strict=True))


def test_gluon_parameters_stay_separate(tmp_path):
    """The parts of a concatenation become the operands of LSTM, so no vector of all parameters is built."""
    parts = parameters("lstm", 1, 1)
    document, params = gluon_lstm(parts)
    (tmp_path / "net-symbol.json").write_text(json.dumps(document))
    found = import_model(tmp_path / "net-symbol.json", params=params, shapes={"data": X.shape})
    model = gk.Model.from_graph(found.graph, found.params)
    states = [np.zeros((1, BATCH, HIDDEN))] * 2
    wanted = recurrence("lstm", X, parts, states, 1, 1)[0]
    (y,) = model.run({"data": X}).values()
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)
    operators = [made.op.name for made in found.graph.nodes]
    assert "LSTM" in operators
    assert "Slice" not in operators
    assert not any(made.op.name == "Concat" and made.outputs[0].tensor.shape == (56,) for made in found.graph.nodes)


def load(tmp_path, **changes):
    item = rnn_case("lstm")
    item.attributes.update(changes)
    check([item], tmp_path)


def test_wrong_parameter_count(tmp_path):
    with pytest.raises(InvalidModel, match="the vector of parameters has 64 elements; this RNN needs 160"):
        load(tmp_path, num_layers="3")


# A projected LSTM: MXNet 1.9.1's outputs for these parameters and constant operands.
LSTMP_OF_MXNET = [
    [
        [[0.0504103, -0.0785933, 0.0150024], [-0.1047335, 0.1154781, 0.0086218]],
        [[0.1324919, -0.2360492, 0.0639704], [0.1560884, -0.324641, 0.1141082]],
        [[0.2949877, -0.4832239, 0.1071965], [0.3364209, -0.4207484, 0.0137653]],
    ],
    [[[0.2949877, -0.4832239, 0.1071965], [0.3364209, -0.4207484, 0.0137653]]],
    [[[0.7049579, 0.216487], [0.7970201, 0.0097779]]],
]


def test_projection_against_mxnet(tmp_path):
    x, packed = np.linspace(-1, 1, 12), np.sin(np.arange(62))
    states = np.linspace(-0.5, 0.5, 6), np.linspace(0.5, -0.5, 4)
    operands = [x.reshape(3, 2, 2), packed, states[0].reshape(1, 2, 3), states[1].reshape(1, 2, 2)]
    item = case("RNN", *map(np.float32, operands), gives=[np.float32(v) for v in LSTMP_OF_MXNET], mode="lstm",
        state_size=2, num_layers=1, projection_size=3, state_outputs=True)  # fmt: skip
    check([item], tmp_path)


def test_states_of_a_projection_may_have_an_unknown_batch_size(tmp_path):
    item = rnn_case("lstm", projection=3)
    model, feeds = imported([item], tmp_path, {"x0_0": (TIME, "N", FEATURES), "x0_2": (1, "N", 3), "x0_3": (1, "N", 2)})
    for found, wanted in zip(model.run(feeds).values(), item.gives, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_quantised_data_are_dequantised(mode, tmp_path):
    """Scale and shift of the data are the last operands."""
    parts, count = parameters(mode, 2, 2), 1 + (mode == "lstm")
    states = [floats(4, BATCH, HIDDEN, seed=20 + i) for i in range(count)]
    integers = np.arange(X.size).reshape(X.shape).astype(np.uint8) * 3
    wanted = recurrence(mode, (integers - 97.5) / 75, parts, states, 2, 2)
    packed = np.concatenate([part.ravel() for part in parts])
    item = case("_contrib_quantized_rnn", integers, packed, *states, np.float32([75]), np.float32([97.5]), gives=wanted,
                weights=[1], mode=mode, state_size=HIDDEN, num_layers=2, bidirectional=True, state_outputs=True,
                quantized="true")  # fmt: skip
    check([item], tmp_path)


@in_one_item()
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "gru", "projection_size": "2"}, "projection_size 2 with mode gru: only an LSTM"),
        ({"projection_size": "0"}, "projection_size is 0; it must be at least 1"),
        ({"lstm_state_clip_max": "1"}, "lstm_state_clip_max is given without the other bound"),
    ],
)
def test_wrong_projection_or_clip(changes, message, tmp_path):
    with pytest.raises(InvalidModel, match=message):
        load(tmp_path, **changes)


def test_bounds_of_the_state_do_not_change_a_gru(tmp_path):
    item = rnn_case("gru")
    item.attributes |= {"lstm_state_clip_min": "-0.01", "lstm_state_clip_max": "0.01"}
    check([item], tmp_path)


@pytest.mark.pytorch
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("mode", GATES)
def test_against_pytorch(mode, directions, tmp_path):
    import torch

    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(mode, torch.nn.RNN)
    options = {"nonlinearity": mode.removeprefix("rnn_")} if mode.startswith("rnn") else {}
    net = kind(FEATURES, HIDDEN, 2, bidirectional=directions == 2, **options)
    item = rnn_case(mode, 2, directions)
    parts = parameters(mode, 2, directions)
    biases = len(parts) // 2
    for number in range(2 * directions):
        suffix = f"l{number // directions}" + ("_reverse" if number % directions else "")
        values = [*parts[2 * number : 2 * number + 2], *parts[biases + 2 * number : biases + 2 * number + 2]]
        for name, value in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), values, strict=True):
            getattr(net, f"{name}_{suffix}").data = torch.from_numpy(value)
    states = [torch.from_numpy(v) for v in item.operands[2:]]
    y, ends = net(torch.from_numpy(X), tuple(states) if mode == "lstm" else states[0])
    found = [y, *(ends if mode == "lstm" else [ends])]
    item.gives = [v.detach().numpy() for v in found]
    check([item], tmp_path)
