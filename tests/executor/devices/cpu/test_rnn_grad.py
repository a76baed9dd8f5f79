"""native.Recurrent that saves, and native.RecurrentGrad, against the operators' references in float64."""

import numpy as np
import pytest
from combinations import in_one_item, seeds
from device_pipelines import patch_pipelines

from graphkit.autodiff import gradient
from graphkit.executor.devices.cpu import native
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.rnn.backward import (
    GRURecurrence,
    GRURecurrenceGrad,
    LSTMRecurrence,
    LSTMRecurrenceGrad,
    RNNRecurrence,
    RNNRecurrenceGrad,
)
from graphkit.ops.xp import numpy_xp

OPERATORS = {
    "RNN": (RNNRecurrence, RNNRecurrenceGrad),
    "GRU": (GRURecurrence, GRURecurrenceGrad),
    "LSTM": (LSTMRecurrence, LSTMRecurrenceGrad),
}
OPTIONAL = ("b", "sequence_lens", "initial_h", "initial_c", "p", "dy", "dy_h", "dy_c")
DIRECTIONS = ["forward", "reverse", "bidirectional"]


class Layer:
    """A layer with random parameters and gradients; the kernels of its recurrence and of that backward in time."""

    def __init__(self, kind, time, batch, features, hidden, *, optional=OPTIONAL, seed=0, **attributes):
        saving, back = OPERATORS[kind]
        self.saving, self.back = saving(**attributes), back(**attributes)
        self.layer = self.saving.forward
        self.sizes = time, batch, features, hidden
        rng = np.random.default_rng(seed)
        d, layout = self.layer.directions, self.layer.layout
        columns, scale = self.layer.gates * hidden, 1 / np.sqrt(hidden)

        def uniform(*shape):
            return rng.uniform(-scale, scale, shape).astype(np.float32)

        def normal(*shape):
            return rng.standard_normal(shape).astype(np.float32)

        state = (batch, d, hidden) if layout else (d, batch, hidden)
        self.arrays = {
            "x": normal(*((batch, time) if layout else (time, batch)), features),
            "w": uniform(d, columns, features),
            "r": uniform(d, columns, hidden),
            "b": uniform(d, 2 * columns),
            "sequence_lens": rng.integers(0, time + 1, batch).astype(np.int32),
            "initial_h": uniform(*state),
            "initial_c": uniform(*state),
            "p": uniform(d, 3 * hidden),
            "dy": normal(*((batch, time, d) if layout else (time, d, batch)), hidden),
            "dy_h": normal(*state),
            "dy_c": normal(*state),
        }
        for name in OPTIONAL:
            if name not in optional:
                self.arrays[name] = None

    def operands(self, op):
        return [self.arrays[formal.name] for formal in op.formals]

    @property
    def options(self):
        layer = self.layer
        return dict(
            direction=layer.direction,
            activations=[tuple(f) for d in range(layer.directions) for f in layer.functions_of(d)],
            clip=layer.clip,
            linear_before_reset=getattr(layer, "linear_before_reset", False),
            input_forget=getattr(layer, "input_forget", False),
            batch_first=bool(layer.layout),
        )

    def forward_kernel(self, threads=1):
        hidden = self.sizes[3]
        return native.Recurrent(
            self.layer.name, self.arrays["x"].shape, hidden, **self.options, saves=True, threads=threads
        )

    def back_kernel(self, threads=1):
        time, batch, _, hidden = self.sizes
        return native.RecurrentGrad(self.layer.name, time, batch, hidden, **self.options, threads=threads)

    def reference(self, op):
        given = self.operands(op)
        return op.reference(numpy_xp, *(a if a is None or a.dtype == np.int32 else a.astype(np.float64) for a in given))

    def run(self, op, kernel):
        outputs = [np.full(spec, np.nan, np.float32) for spec in (a.shape for a in self.reference(op))]
        kernel(self.operands(op), outputs)
        return outputs

    def check(self, threads=1, tolerance=4e-6):
        """Check both recurrences. The second one reads the values that the first has saved."""
        saved = self.run(self.saving, self.forward_kernel(threads))
        for ours, expected in zip(saved, self.reference(self.saving), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=tolerance, atol=tolerance)
        self.arrays |= dict(zip(self.saving.outputs, saved, strict=True))
        back = self.run(self.back, self.back_kernel(threads))
        for ours, expected in zip(back, self.reference(self.back), strict=True):
            np.testing.assert_allclose(
                ours, expected, rtol=tolerance, atol=tolerance * max(1, abs(expected).max(initial=0))
            )
        return [*saved, *back]


@in_one_item("pairs")
@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("batch", [1, 3, 20])
@pytest.mark.parametrize("optional", [("dy",), ("b", "dy_h"), OPTIONAL], ids=["plain", "bias", "all"])
def test_directions_and_operands(isa, kind, direction, batch, optional):
    Layer(kind, 7, batch, 9, 21, optional=optional, direction=direction).check()


@in_one_item()
@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("LSTM", dict(input_forget=True)),
        ("LSTM", dict(clip=0.25)),
        ("LSTM", dict(layout=1, direction="bidirectional")),
        ("GRU", dict(linear_before_reset=True)),
        ("GRU", dict(linear_before_reset=True, direction="bidirectional", layout=1)),
        ("GRU", dict(clip=0.25, layout=1)),
        ("RNN", dict(clip=0.25, layout=1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("threads", [1, 4])
def test_options(isa, kind, attributes, threads):
    Layer(kind, 5, 4, 6, 18, **attributes).check(threads)


FUNCTIONS = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "Affine": (0.5, 0.25),
    "LeakyRelu": (-0.25,),
    "ThresholdedRelu": (0.5,),
    "ScaledTanh": (1.5, 0.5),
    "HardSigmoid": (0.25, 0.375),
    "Elu": (0.75,),
    "Softsign": (),
    "Softplus": (),
}


@in_one_item()
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("clip", [None, 0.75])
def test_activations(isa, function, clip):
    parameters = FUNCTIONS[function]
    attributes = dict(zip(("activation_alpha", "activation_beta"), ((p,) for p in parameters), strict=False))
    layer = Layer("RNN", 2, 40, 8, 16, optional=("b", "dy"), activations=(function,), clip=clip, **attributes)
    layer.arrays["x"] *= np.float32(2)
    layer.check()


@in_one_item("values")
@pytest.mark.parametrize("hidden", [1, 4, 15, 16, 17, 40, 64, 65, 130])
@pytest.mark.parametrize("kind", OPERATORS)
def test_any_number_of_units(isa, kind, hidden):
    Layer(kind, 1, 1, 3, hidden).check()
    Layer(kind, 3, 7, 3, hidden).check()


@pytest.mark.full
@in_one_item("values")
@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("LSTM", (12, 1, 48, 200)),
        ("LSTM", (9, 20, 64, 96)),
        ("GRU", (12, 1, 48, 230)),
        ("GRU", (9, 24, 64, 96)),
        ("RNN", (40, 2, 300, 300)),
    ],
    ids=str,
)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_any_number_of_threads_gives_the_same_bits(isa, kind, sizes, direction):
    layer = Layer(kind, *sizes, direction=direction)
    single = layer.check(1, 2e-5)
    shared = set()
    for threads in (2, 3, 4, 7):
        kernel = layer.back_kernel(threads)
        shared.add(kernel.implementation.partition("share ")[2])
        for a, b in zip(layer.check(threads, 2e-5), single, strict=True):
            np.testing.assert_array_equal(a, b)
    assert shared & {"units", "sequences"}


@in_one_item()
@pytest.mark.parametrize("seed", seeds(40, default=20))
def test_random_layers(seed):
    rng = np.random.default_rng(seed)
    kind = str(rng.choice(list(OPERATORS)))
    attributes = {"direction": str(rng.choice(DIRECTIONS)), "layout": int(rng.integers(0, 2))}
    if kind == "GRU":
        attributes["linear_before_reset"] = bool(rng.integers(0, 2))
    if kind == "LSTM":
        attributes["input_forget"] = bool(rng.integers(0, 2))
    if rng.random() < 0.3:
        attributes["clip"] = 0.5
    sizes = [int(v) for v in rng.integers(1, [24, 14, 70, 90])]
    optional = [name for name in OPTIONAL if rng.integers(0, 2)]
    Layer(kind, *sizes, optional=optional, seed=seed, **attributes).check(int(rng.integers(1, 5)), 2e-5)


@in_one_item()
@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize("sizes", [(0, 3, 4), (4, 0, 4)], ids=["no steps", "no sequences"])
def test_empty(kind, sizes):
    Layer(kind, *sizes, 5).check(2)


def test_outputs_that_nobody_reads():
    layer = Layer("LSTM", 5, 3, 4, 10, direction="bidirectional")
    whole = layer.check()[-4:]
    for alone in (1, 2, 3):
        outputs = [np.empty_like(a) if i in (0, alone) else None for i, a in enumerate(whole)]
        layer.back_kernel()(layer.operands(layer.back), outputs)
        np.testing.assert_array_equal(outputs[alone], whole[alone])


@in_one_item()
@pytest.mark.parametrize("linear", [False, True])
def test_only_the_initial_state_is_read(linear):
    layer = Layer("GRU", 5, 3, 4, 10, linear_before_reset=linear)
    layer.check()
    kernel = native.RecurrentGrad("GRU", 5, 3, 10, **layer.options, reads_gates=False, reads_other=False)
    d_initial = np.empty((1, 3, 10), np.float32)
    kernel(layer.operands(layer.back), [None, d_initial, None])
    np.testing.assert_array_equal(d_initial, layer.run(layer.back, layer.back_kernel())[1])


def test_sequences_longer_than_there_are_steps_and_negative_ones():
    layer = Layer("GRU", 4, 3, 2, 5)
    layer.arrays["sequence_lens"][...] = [9, -1, 2]
    layer.check()


def layer_and_gradients(kind, **attributes):
    """y and the gradients of a weighted sum of it, of a layer of known size over sequences of any length."""
    gates, d = {"rnn": 1, "gru": 3, "lstm": 4}[kind], 2 if attributes.get("direction") == "bidirectional" else 1
    shapes = {"x": ("T", 4, 6), "w": (d, gates * 12, 6), "r": (d, gates * 12, 12), "b": (d, gates * 24)}
    operands = [Value(TensorType("float32", shape), name) for name, shape in shapes.items()]
    if kind == "lstm":
        operands.append(Value(TensorType("float32", (d, 36)), "p"))
    others = [None, None, None, operands[4]] if kind == "lstm" else []
    y, h, *_ = getattr(F, kind)(*operands[:4], *others, **attributes)
    graph = Graph(operands, [y, *gradient([F.mul(y, y), h], operands)])
    rng = np.random.default_rng(0)

    def feeds(steps):
        sizes = {v.name: [n if isinstance(n, int) else steps for n in v.tensor.shape] for v in operands}
        return {name: rng.standard_normal(s).astype(np.float32) * np.float32(0.3) for name, s in sizes.items()}

    return graph, feeds


@in_one_item("values")
@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_layer_shares_the_recurrence_of_its_gradient(monkeypatch, kind, direction):
    """The results are those of Scans, which compute the gradient if the kernels do not apply."""
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    graph, feeds = layer_and_gradients(kind, direction=direction)
    whole = Executor(graph, ParamStore({}), threads=2)
    patch_pipelines(monkeypatch, runs_whole=lambda device, node: False)
    scans = Executor(graph, ParamStore({}), threads=2)
    for steps in (3, 8):
        data = feeds(steps)
        for (name, ours), expected in zip(whole.run(data).items(), scans.run(data).values(), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=2e-5, err_msg=name)
    names = [step.op.rpartition(".")[2] for step in whole.plan.steps]
    assert names.count(f"{kind.upper()}Recurrence") == names.count(f"{kind.upper()}RecurrenceGrad") == 1
    assert not {kind.upper(), "Scan"} & set(names)
    assert "Scan" in [step.op for step in scans.plan.steps]


def test_doubles_run_as_scans():
    x, w, r = (Value(TensorType("float64", s), n) for n, s in (("x", (4, 3, 2)), ("w", (1, 20, 2)), ("r", (1, 20, 5))))
    y = F.lstm(x, w, r)[0]
    graph = Graph([x, w, r], gradient([y], [x, w, r]))
    rng = np.random.default_rng(0)
    executor = Executor(graph, ParamStore({}))
    executor.run({v.name: rng.standard_normal(v.tensor.static_shape) for v in graph.inputs})
    assert "Scan" in [step.op for step in executor.plan.steps]


@in_one_item()
@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("LSTM", 3, 4, 0), {}, "0 hidden units"),
        (("Elman", 3, 4, 5), {}, "no recurrent layer 'Elman'"),
        (("RNN", 3, 4, 5), {"direction": "up"}, "no direction 'up'"),
        (("GRU", 3, 4, 5), {"activations": [("tanh", 0, 0)]}, "1 activations for 1 directions of 2"),
    ],
)
def test_what_is_no_layer(arguments, options, message):
    with pytest.raises(native.Error, match=message):
        native.RecurrentGrad(*arguments, **options)
