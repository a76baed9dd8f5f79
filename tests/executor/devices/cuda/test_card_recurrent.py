"""Recurrent layers on the GPU beyond the samples: sizes, operands, types, padding, unused results, and networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from card_cases import node_of
from card_runs import kernel_of, run
from emulator import Emulator
from stand_in import Card
from together import together

import graphkit as gk
from graphkit.checks.samples import make_case, samples_of
from graphkit.executor.devices.cuda.launches import CardKernel, Product
from graphkit.executor.devices.cuda.rnn.steps import Recurrent
from graphkit.executor.devices.cuda.text.indexing import Coordinates
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.loading import load_device
from graphkit.executor.devices.registry import make_kernel, make_launched, runs_whole
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import Op
from graphkit.ops.evaluate import run_node
from graphkit.ops.rnn import backward
from graphkit.ops.rnn.gradient import GRUGrad, LSTMGrad, RNNGrad

pytestmark = pytest.mark.full

KINDS = ("RNN", "GRU", "LSTM")
ALL = ("b", "sequence_lens", "initial_h", "initial_c", "p", "dy", "dy_h", "dy_c")
OPTIONS: list[dict[str, Any]] = [
    dict(direction="forward"),
    dict(direction="reverse", layout=1),
    dict(direction="bidirectional", clip=0.4),
    dict(direction="bidirectional", layout=1),
]
OF_KIND: list[tuple[str, dict[str, Any]]] = [
    *((kind, options) for kind in KINDS for options in OPTIONS),
    *(("GRU", {**options, "linear_before_reset": True}) for options in OPTIONS),
    *(("LSTM", {**options, "input_forget": True}) for options in OPTIONS[1:3]),
    ("RNN", dict(direction="bidirectional", activations=("LeakyRelu", "Elu"), activation_alpha=(0.25, 0.5))),
    (
        "LSTM",
        dict(
            direction="bidirectional", activation_alpha=(0.5, 0.25), activation_beta=(0.25, 0.5),
            activations=("Sigmoid", "Softsign", "Affine", "HardSigmoid", "Softplus", "Tanh"),
        ),
    ),
]  # fmt: skip


class Layer:
    """Operands of a layer's operators: float32 [T, N, I] of a normal distribution, `sizes` T, N, I, H."""

    def __init__(self, kind: str, sizes: Sequence[int], present: Sequence[str] = ALL, **options: Any):
        self.saving: Op = getattr(backward, f"{kind}Recurrence")(**options)
        self.back: Op = getattr(backward, f"{kind}RecurrenceGrad")(**options)
        layer: Any = self.saving.forward  # type: ignore[attr-defined]
        self.layer, rng = layer, np.random.default_rng(0)
        time, batch, features, hidden = sizes
        d, scale = layer.directions, 1 / np.sqrt(max(hidden, 1))
        state = (batch, d, hidden) if layer.layout else (d, batch, hidden)
        columns = layer.gates * hidden

        def normal(*shape: int, by: float = 1.0) -> np.ndarray:
            return (by * rng.standard_normal(shape)).astype(np.float32)

        given = {
            "x": normal(*((batch, time) if layer.layout else (time, batch)), features),
            "w": normal(d, columns, features, by=scale), "r": normal(d, columns, hidden, by=scale),
            "b": normal(d, 2 * columns), "initial_h": normal(*state), "initial_c": normal(*state),
            # None, some, all, and more than there are.
            "sequence_lens": np.resize(np.array([0, 3, time, time + 2, -1], np.int32), batch),
            "p": normal(d, 3 * hidden), "dy_h": normal(*state), "dy_c": normal(*state),
            "dy": normal(*((batch, time, d) if layer.layout else (time, d, batch)), hidden),
            "gates": normal(d, time, batch, layer.saved_gates * hidden),
            "h_before": normal(d, time, batch, hidden), "c_before": normal(d, time, batch, hidden),
        }  # fmt: skip
        self.arrays = {name: a for name, a in given.items() if name not in ALL or name in present}

    @property
    def operators(self) -> tuple[Op, Op, Op]:
        return self.layer, self.saving, self.back

    def operands(self, op: Op) -> list[Any]:
        return [self.arrays.get(formal.name) for formal in op.formals]

    def node(self, op: Op) -> tuple[Node, list[Any]]:
        arrays = self.operands(op)
        return node_of(op, *arrays), arrays


def in_double(node: Node, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Return the results of the reference in float64."""
    wide = [a if a is None or a.dtype == np.int32 else a.astype(np.float64) for a in arrays]
    return run_node(node_of(node.op, *wide), wide)


def compile_all(emulator: Emulator, *layers: Layer) -> None:
    """At once, which takes a compiler much less time."""
    nodes = [layer.node(op)[0] for layer in layers for op in layer.operators]
    emulator.compile(source for node in nodes for source in kernel_of(node, (True,) * len(node.outputs)).sources)


def whole(emulator: Emulator, node: Node, arrays: list[Any]) -> list[Any]:
    """All results."""
    return run(emulator, node, arrays, (True,) * len(node.outputs))


def check(emulator: Emulator, *layers: Layer, tolerance: float = 2e-6) -> None:
    compile_all(emulator, *layers)
    for layer in layers:
        for op in layer.operators:
            node, arrays = layer.node(op)
            for ours, expected in zip(whole(emulator, node, arrays), in_double(node, arrays), strict=True):
                np.testing.assert_allclose(ours, expected, rtol=tolerance, atol=tolerance, err_msg=op.name)


# --- values -----------------------------------------------------------------------------------------


@together()
@pytest.mark.parametrize(("kind", "options"), OF_KIND)
def test_operands_and_directions(kind: str, options: dict[str, Any], emulator: Emulator) -> None:
    """More threads than one block, and sizes that are not powers of two."""
    check(emulator, Layer(kind, (5, 7, 3, 29), **options), Layer(kind, (4, 3, 2, 5), (), **options))


@together()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize(
    "sizes", [(0, 3, 2, 5), (4, 0, 2, 5), (4, 3, 0, 5), (4, 3, 2, 0), (1, 1, 1, 1), (0, 0, 0, 0)], ids=str
)
def test_nothing_at_all(kind: str, layout: int, sizes: tuple[int, ...], emulator: Emulator) -> None:
    """No step leaves the initial states, no sequence and no unit nothing; without features there is the bias."""
    options: dict[str, Any] = dict(layout=layout, direction="bidirectional")
    check(emulator, *(Layer(kind, sizes, present, **options) for present in (ALL, ())))


@together()
@pytest.mark.parametrize("kind", KINDS)
def test_what_nobody_reads(kind: str, emulator: Emulator) -> None:
    """Is not written, and changes nothing of the rest."""
    layer = Layer(kind, (3, 4, 2, 6), direction="bidirectional")
    for op in layer.operators:
        node, arrays = layer.node(op)
        count = len(node.outputs)
        expected = whole(emulator, node, arrays)
        choices = [[(i == kept) == alone for i in range(count)] for kept in range(count) for alone in (True, False)]
        emulator.compile(source for used in choices for source in kernel_of(node, tuple(used)).sources)
        for used in choices:
            for ours, all_of_it in zip(run(emulator, node, arrays, tuple(used)), expected, strict=True):
                assert ours is None or ours.tobytes() == all_of_it.tobytes()


@together()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_types(kind: str, dtype: str, emulator: Emulator) -> None:
    """Half floats are multiplied as they are, summed and computed with as float32, and rounded between steps."""
    kept = DType(dtype).numpy
    layer = Layer(kind, (6, 5, 4, 12), direction="bidirectional")
    layer.arrays = {name: a if a.dtype == np.int32 else a.astype(kept) for name, a in layer.arrays.items()}
    compile_all(emulator, layer)
    bound = {"float16": 4e-3, "bfloat16": 3e-2, "float64": 1e-13}[dtype]
    for op in layer.operators:
        node, arrays = layer.node(op)
        for ours, expected in zip(whole(emulator, node, arrays), in_double(node, arrays), strict=True):
            assert ours.dtype == kept
            size = max(np.abs(expected).max(), 1)
            assert np.abs(ours.astype(np.float64) - expected).max() <= bound * size, op.name


# --- what is not finite -----------------------------------------------------------------------------


@together()
@pytest.mark.parametrize(("kind", "options"), [*((kind, {}) for kind in KINDS), ("GRU", {"linear_before_reset": True})])
def test_padding_that_is_no_number(kind: str, options: dict[str, Any], emulator: Emulator) -> None:
    """Beyond the length of a sequence stays out of what follows. Its gates are saved as they are; their gradients are 0
    as in the processor's kernels, where the reference multiplies zeros with NaN.
    """
    load_device("cpu")
    layer = Layer(kind, (5, 4, 3, 6), direction="bidirectional", **options)
    layer.arrays["sequence_lens"] = np.array([2, 5, 0, 4], np.int32)
    compile_all(emulator, layer)
    for n, length in enumerate(layer.arrays["sequence_lens"]):
        layer.arrays["x"][length:, n] = np.nan
        layer.arrays["gates"][:, length:, n] = np.nan
        layer.arrays["dy"][length:, :, n] = np.nan
    for op in layer.operators:
        node, arrays = layer.node(op)
        native = make_kernel("cpu", node, KernelContext(used_outputs=(True,) * len(node.outputs)))
        assert native is not None
        expected = [np.zeros(v.tensor.static_shape, v.dtype.numpy) for v in node.outputs]
        native(arrays, expected)
        found = whole(emulator, node, arrays)
        finite = found if op is layer.back else found[: 1 + layer.layer.states]
        assert all(np.isfinite(y).all() for y in finite)
        for ours, theirs, reference in zip(found, expected, in_double(node, arrays), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5, err_msg=op.name)
            same = slice(None) if op is not layer.back else np.isfinite(reference)
            np.testing.assert_allclose(ours[same], reference[same], rtol=1e-5, atol=1e-5, err_msg=op.name)


@together()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_weights_that_are_not_finite(kind: str, value: float, emulator: Emulator) -> None:
    """Without an initial state, which is 0 times them."""
    layer = Layer(kind, (3, 2, 2, 4), ("b", "dy"), direction="reverse")
    layer.arrays["r"][0, 1, 2] = value
    compile_all(emulator, layer)
    for op in layer.operators:
        node, arrays = layer.node(op)
        with np.errstate(all="ignore"):
            expected = run_node(node, arrays)
            found = whole(emulator, node, arrays)
        for ours, reference in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, reference, rtol=1e-4, atol=1e-5, err_msg=op.name)


# --- launches ---------------------------------------------------------------------------------------


@together()
@pytest.mark.parametrize(
    ("kind", "options", "each"),
    [("RNN", {}, 2), ("LSTM", {}, 2), ("GRU", {}, 4), ("GRU", {"linear_before_reset": True}, 2)],
)
def test_launches(kind: str, options: dict[str, Any], each: int) -> None:
    """Each step launches a product and a kernel for both directions; two of each if a GRU gate has its own product."""
    for direction in ("forward", "bidirectional"):
        counts = []
        for steps in (3, 4, 50):
            layer = Layer(kind, (steps, 4, 3, 6), direction=direction, **options)
            kernels = [kernel_of(layer.node(op)[0], (True,) * 6) for op in layer.operators]
            counts.append([len(kernel.launches) for kernel in kernels])
            for kernel in kernels:
                products = {launch for launch in kernel.launches if isinstance(launch, Product)}
                assert len({id(product) for product in products}) <= 1 + each // 2, "each is prepared once"
                assert len(set(kernel.sources)) <= 2 + each // 2 + (each == 4), "a text serves all steps"
        few, one_more, many = np.array(counts)
        np.testing.assert_array_equal(one_more - few, each)
        np.testing.assert_array_equal(many - few, 47 * each)
        assert few.max() <= 3 * each + 4


@together()
@pytest.mark.parametrize("kind", KINDS)
def test_wide_indices(kind: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are those of large layers, and change no bit."""
    large = Layer(kind, (1, 1, 1, 1))
    units, past = 1 << 9, (1, 1 << 12, 1 << 10)
    columns = large.layer.gates * units
    sizes = {
        "x": (1 << 12, 1 << 10, 1), "w": (1, columns, 1), "r": (1, columns, units), "h_before": (*past, units),
        "c_before": (*past, units), "gates": (*past, large.layer.saved_gates * units),
    }  # fmt: skip
    for op in (large.saving, large.back):
        given = [Value(TensorType("float32", sizes[f.name])) if f.name in sizes else None for f in op.formals]
        kernel = make_launched("cuda", Node(op, given), KernelContext())
        assert isinstance(kernel, CardKernel)
        steps = {source for source in kernel.sources if kind.lower() in source.entry}
        assert len(steps) >= 2
        assert all("gk_u64" in source.parameters for source in steps)
    layer = Layer(kind, (4, 5, 3, 6), direction="bidirectional", layout=1)
    compile_all(emulator, layer)
    nodes = [layer.node(op) for op in layer.operators]
    short = [whole(emulator, *node) for node in nodes]
    monkeypatch.setattr(Recurrent, "places", property(lambda self: Coordinates("i", 3, False)))
    compile_all(emulator, layer)
    for node, expected in zip(nodes, short, strict=True):
        for ours, theirs in zip(whole(emulator, *node), expected, strict=True):
            assert ours.tobytes() == theirs.tobytes()


@together()
@pytest.mark.parametrize("kind", KINDS)
def test_tf32(kind: str) -> None:
    """Where it is asked for, all products of float32."""
    for dtype, wanted in ((np.float32, True), (np.float64, False)):
        layer = Layer(kind, (2, 3, 4, 5))
        layer.arrays = {name: a if a.dtype == np.int32 else a.astype(dtype) for name, a in layer.arrays.items()}
        for op in layer.operators:
            kernel = make_launched("cuda", layer.node(op)[0], KernelContext(tf32=True))
            assert isinstance(kernel, CardKernel)
            assert {launch.tf32 for launch in kernel.launches if isinstance(launch, Product)} == {wanted}


# --- networks ---------------------------------------------------------------------------------------


def test_a_network_is_one_recording(card: Card) -> None:
    """The network has layers of every kind, with lengths, and the results of ONNX Runtime."""
    onnxruntime = pytest.importorskip("onnxruntime")
    x, lengths = gk.input("x", [6, 3, 4]), gk.input("lengths", [3], dtype="int32")
    one, _ = gk.nn.lstm(x, 5, lengths=lengths, direction="bidirectional", name="one")
    two, _ = gk.nn.gru(one, 7, direction="reverse", name="two")
    three, last = gk.nn.rnn(two, 4, lengths=lengths, name="three")
    net = gk.Model({"y": three, "last": last}, seed=1)
    session = onnxruntime.InferenceSession(net.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    exe = net.compile("cuda")
    rng = np.random.default_rng(0)
    for turn in range(4):
        feeds = {"x": rng.standard_normal((6, 3, 4)).astype(np.float32), "lengths": np.array([6, turn, 2], np.int32)}
        found, expected = exe.run(feeds), session.run(["y", "last"], feeds)
        for ours, theirs in zip(found.values(), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    assert exe.plan.fallbacks == ()
    assert (card.interpreted, card.recordings, card.replays) == ([], 1, 3)


@together()
@pytest.mark.parametrize("cls", [RNNGrad, GRUGrad, LSTMGrad], ids=lambda cls: cls.name)
def test_gradients_of_layers(cls: type[Op], card: Card) -> None:
    """All nodes of the gradients have kernels."""
    for number, _ in enumerate(samples_of(cls)):
        case = make_case(cls, number, DType.FLOAT32)
        node = node_of(case.op, *case.arrays)
        inputs = [v for v in node.inputs if v is not None]
        exe = Executor(Graph(inputs, node.outputs), ParamStore({}, {}), device="cuda")
        found = exe(*(a for a in case.arrays if a is not None))
        for ours, expected in zip(found, run_node(node, case.arrays), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
        assert exe.plan.fallbacks == ()
    assert not card.interpreted


def language_model() -> gk.Model:
    return gk.models.build("lstm_lm", vocab=30, hidden=20, layers=2)


def classifier(kind: str, **options: Any) -> Callable[[], gk.Model]:
    def build() -> gk.Model:
        x = gk.input("x", [7, 4, 6])
        y = getattr(gk.nn, kind)(x, 20, direction="bidirectional", name="layer", **options)[0]
        return gk.Model(gk.nn.linear(y, 30, name="head"), name="classifier", seed=2)

    return build


NETWORKS = {
    "lstm_lm": language_model, "lstm": classifier("lstm"), "rnn": classifier("rnn"), "gru": classifier("gru"),
}  # fmt: skip


@together()
@pytest.mark.parametrize("name", NETWORKS)
def test_training(name: str, card: Card) -> None:
    """The whole step is recorded, and gives the parameters of the CPU. The layer is computed once, and saves values."""
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 30, (7, 4))
    x = targets if name == "lstm_lm" else rng.standard_normal((7, 4, 6)).astype(np.float32)
    losses, parameters = [], []
    for device in ("cpu", "cuda"):
        net = NETWORKS[name]()
        trainer = gk.Trainer(net, loss="softmax_cross_entropy", optimizer=gk.optim.SGD(0.5), device=device)
        losses.append([float(trainer.step(x, targets)) for _ in range(4)])
        parameters.append(dict(net.params))
    np.testing.assert_allclose(*losses, rtol=1e-5)
    for key, array in parameters[0].items():
        np.testing.assert_allclose(parameters[1][key], array, rtol=1e-3, atol=1e-5, err_msg=key)
    assert not card.interpreted
    kind, layers = ("LSTM", 2) if name == "lstm_lm" else (name.upper(), 1)
    launched = [op for op in card.launched if op.startswith(kind)]
    assert sorted(launched) == [*[f"{kind}Recurrence"] * layers, *[f"{kind}RecurrenceGrad"] * layers]
    # Where the card does not look at faults itself: before states are written over, and behind.
    assert card.recordings == (1 if card.has_conditions else 2)
    assert card.replays >= 2 * card.recordings


def test_recomputation_keeps_recurrences(card: Card) -> None:
    """Their expansion would be a loop."""
    layer = Layer("LSTM", (3, 2, 2, 4))
    for op in (layer.saving, layer.back):
        assert runs_whole("cuda", layer.node(op)[0])
    targets = np.random.default_rng(0).integers(0, 30, (7, 4))
    plain, again = (
        gk.Trainer(language_model(), "softmax_cross_entropy", gk.optim.SGD(0.5), device="cuda", recompute=recompute)
        for recompute in (None, "sqrt")
    )
    for _ in range(2):
        assert float(plain.step(targets, targets)) == float(again.step(targets, targets))
    assert not card.interpreted
