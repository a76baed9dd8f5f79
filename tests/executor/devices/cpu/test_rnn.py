"""native.Recurrent against the operators' references in float64."""

import threading
from functools import cached_property

import numpy as np
import pytest
from combinations import in_one_item, seeds

from graphkit.executor.devices.cpu import native
from graphkit.executor.memory.packing import aligned_bytes
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.rnn.layers import GRU, LSTM, RNN
from graphkit.ops.rnn.recurrence import Recurrence
from graphkit.ops.xp import numpy_xp

KINDS = {"RNN": RNN, "GRU": GRU, "LSTM": LSTM}


class Layer:
    """A layer with random parameters, and its kernels."""

    def __init__(self, kind, time, batch, features, hidden, *, optional=(), seed=0, **attributes):
        self.op: Recurrence = KINDS[kind](**attributes)
        self.hidden = hidden
        rng = np.random.default_rng(seed)
        d, columns, scale = self.op.directions, self.op.gates * hidden, 1 / np.sqrt(hidden)

        def uniform(*shape):
            return rng.uniform(-scale, scale, shape).astype(np.float32)

        x = rng.standard_normal((batch, time, features) if self.op.layout else (time, batch, features))
        state = (batch, d, hidden) if self.op.layout else (d, batch, hidden)
        self.arrays = {
            "x": x.astype(np.float32),
            "w": uniform(d, columns, features),
            "r": uniform(d, columns, hidden),
            "b": uniform(d, 2 * columns),
            "sequence_lens": rng.integers(0, time + 1, batch).astype(np.int32),
            "initial_h": uniform(*state),
            "initial_c": uniform(*state),
            "p": uniform(d, 3 * hidden),
        }
        for name in ("b", "sequence_lens", "initial_h", "initial_c", "p"):
            if name not in optional or name not in [formal.name for formal in self.op.formals]:
                self.arrays[name] = None
        self.inputs = [self.arrays[formal.name] for formal in self.op.formals]

    def kernel(self, threads=1, pack_w=False, pack_r=False):
        op = self.op
        return native.Recurrent(
            op.name,
            self.arrays["x"].shape,
            self.hidden,
            direction=op.direction,
            activations=[tuple(f) for d in range(op.directions) for f in op.functions_of(d)],
            clip=op.clip,
            linear_before_reset=getattr(op, "linear_before_reset", False),
            input_forget=getattr(op, "input_forget", False),
            batch_first=bool(op.layout),
            pack_w=pack_w,
            pack_r=pack_r,
            threads=threads,
        )

    def run(self, kernel):
        inputs = list(self.inputs)
        for position in kernel.packed_inputs:
            packed = aligned_bytes(kernel.packed_bytes(position))
            kernel.pack(position, inputs[position], packed)
            inputs[position] = packed
        outputs = [np.full(expected.shape, np.nan, np.float32) for expected in self.expected]
        kernel(inputs, outputs)
        return outputs

    @cached_property
    def expected(self):
        wide = [a if a is None or a.dtype == np.int32 else a.astype(np.float64) for a in self.inputs]
        return self.op.reference(numpy_xp, *wide)

    def check(self, outputs, tolerance=4e-6):
        for ours, expected in zip(outputs, self.expected, strict=True):
            np.testing.assert_allclose(ours, expected, rtol=tolerance, atol=tolerance)


ALL = ("b", "sequence_lens", "initial_h", "initial_c", "p")
DIRECTIONS = ["forward", "reverse", "bidirectional"]


@in_one_item("pairs")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("batch", [1, 3, 20])
@pytest.mark.parametrize("optional", [(), ("b",), ALL], ids=["plain", "bias", "all"])
def test_directions_and_operands(every_isa, kind, direction, batch, optional):
    layer = Layer(kind, 7, batch, 9, 21, optional=optional, direction=direction)
    layer.check(layer.run(layer.kernel()))
    layer.check(layer.run(layer.kernel(pack_w=True, pack_r=True)))


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
def test_options(isa, kind, attributes):
    layer = Layer(kind, 5, 4, 6, 18, optional=ALL, **attributes)
    layer.check(layer.run(layer.kernel()))
    layer.check(layer.run(layer.kernel(threads=4, pack_r=True)))


FUNCTIONS = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "Affine": (0.5, 0.25),
    "LeakyRelu": (0.25,),
    "ThresholdedRelu": (0.5,),
    "ScaledTanh": (1.5, 0.5),
    "HardSigmoid": (0.25, 0.375),
    "Elu": (0.75,),
    "Softsign": (),
    "Softplus": (),
}


@in_one_item()
@pytest.mark.parametrize("function", FUNCTIONS)
def test_activations(isa, function):
    parameters = FUNCTIONS[function]
    attributes = dict(zip(("activation_alpha", "activation_beta"), ((p,) for p in parameters), strict=False))
    layer = Layer("RNN", 1, 40, 8, 16, optional=("b",), activations=(function,), **attributes)
    layer.arrays["x"][...] *= np.float32(4)
    layer.check(layer.run(layer.kernel()))


def test_functions_of_gates_far_out_and_near_zero(isa):
    """Test activations through a layer of one unit whose gates are x. Relative errors of tanh near 0 count."""
    x = np.concatenate([np.float32([-1e30, -200, -88, 88, 200, 1e30]), np.geomspace(1e-8, 9, 500, dtype=np.float32)])
    x = np.concatenate([x, -x]).reshape(1, -1, 1)
    ones, zeros = np.ones((1, 1, 1), np.float32), np.zeros((1, 1, 1), np.float32)
    for function, expected in (("tanh", np.tanh), ("sigmoid", lambda v: 1 / (1 + np.exp(-v)))):
        y = np.empty((1, 1, x.shape[1], 1), np.float32)
        kernel = native.Recurrent("RNN", x.shape, 1, activations=[(function, 0, 0)])
        with np.errstate(over="ignore"):
            kernel([x, ones, zeros], [y, None])
            wide = expected(x.astype(np.float64))
        np.testing.assert_allclose(y[0, 0], wide[0], rtol=4e-7, atol=1e-30)


@in_one_item("values")
@pytest.mark.parametrize(
    ("kind", "sizes", "shared"),
    [
        ("LSTM", (12, 1, 48, 200), "units"),
        ("LSTM", (9, 20, 64, 96), "sequences"),
        ("GRU", (12, 1, 48, 230), "units"),
        ("GRU", (9, 24, 64, 96), "sequences"),
        ("RNN", (40, 2, 300, 300), ""),
    ],
    ids=str,
)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_any_number_of_threads_gives_the_same_bits(isa, kind, sizes, shared, direction):
    layer = Layer(kind, *sizes, optional=ALL, direction=direction)
    single = layer.run(layer.kernel(1))
    layer.check(single, 2e-5)
    for threads in (2, 3, 4, 7):
        kernel = layer.kernel(threads)
        assert "threads share" in kernel.implementation
        assert threads != 4 or shared in kernel.implementation
        for _ in range(5):
            for a, b in zip(layer.run(kernel), single, strict=True):
                np.testing.assert_array_equal(a, b)


@in_one_item()
@pytest.mark.parametrize("seed", seeds(60, default=20))
def test_random_layers(seed):
    rng = np.random.default_rng(seed)
    kind = str(rng.choice(list(KINDS)))
    attributes = {"direction": str(rng.choice(DIRECTIONS)), "layout": int(rng.integers(0, 2))}
    if kind == "GRU":
        attributes["linear_before_reset"] = bool(rng.integers(0, 2))
    if kind == "LSTM":
        attributes["input_forget"] = bool(rng.integers(0, 2))
    if rng.random() < 0.3:
        attributes["clip"] = 0.5
    sizes = [int(v) for v in rng.integers(1, [24, 14, 700, 90])]
    optional = [name for name in ALL if rng.integers(0, 2)]
    layer = Layer(kind, *sizes, optional=optional, seed=seed, **attributes)
    flags = [bool(f) for f in rng.integers(0, 2, 2)]
    layer.check(layer.run(layer.kernel(int(rng.integers(1, 5)), *flags)), 2e-5)


@in_one_item()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(0, 3, 4), (4, 0, 4), (4, 3, 0)], ids=["no steps", "no sequences", "no features"])
def test_empty(kind, sizes):
    layer = Layer(kind, *sizes, 5, optional=ALL)
    layer.check(layer.run(layer.kernel(2)))


def test_outputs_that_nobody_reads():
    layer = Layer("LSTM", 5, 3, 4, 10, optional=ALL, direction="bidirectional")
    whole = layer.run(layer.kernel())
    for alone in range(3):
        outputs = [np.empty_like(a) if i == alone else None for i, a in enumerate(whole)]
        layer.kernel()(layer.inputs, outputs)
        np.testing.assert_array_equal(outputs[alone], whole[alone])


def test_sequences_longer_than_there_are_steps_and_negative_ones():
    layer = Layer("LSTM", 4, 3, 2, 5, optional=ALL)
    layer.arrays["sequence_lens"][...] = [9, -1, 2]
    layer.check(layer.run(layer.kernel()))


def test_one_kernel_from_many_threads():
    layer = Layer("LSTM", 12, 1, 48, 200, optional=ALL)
    kernel = layer.kernel(threads=4)
    expected = layer.run(kernel)
    failures = []

    def work():
        for _ in range(20):
            for a, b in zip(layer.run(kernel), expected, strict=True):
                if not np.array_equal(a, b):
                    failures.append(a)

    workers = [threading.Thread(target=work) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def test_more_threads_than_cores_give_the_same_bits():
    rng = np.random.default_rng(0)
    operands = [rng.standard_normal(s).astype(np.float32) * 0.1 for s in ((20, 1, 64), (1, 1024, 64), (1, 1024, 256))]
    results = []
    for threads in (1, 4, 16):
        kernel = native.Recurrent("LSTM", (20, 1, 64), 256, threads=threads)
        results.append(np.empty((20, 1, 1, 256), np.float32))
        kernel(operands, [results[-1], None, None])
    assert "threads share units" in kernel.implementation
    assert all(np.array_equal(r, results[0]) for r in results)


@in_one_item()
@pytest.mark.parametrize("kind", KINDS)
def test_packed_layouts(kind):
    layer = Layer(kind, 3, 2, 8, 8)
    other = Layer(kind, 9, 5, 8, 8)
    kernels = [layer.kernel(pack_w=True, pack_r=True), other.kernel(4, pack_w=True, pack_r=True)]
    for position in (1, 2):
        assert kernels[0].packed_layout(position) == kernels[1].packed_layout(position)
    assert layer.kernel(pack_r=True).packed_inputs == [2]
    with pytest.raises(native.Error, match="input 1 is not packed"):
        layer.kernel(pack_r=True).packed_layout(1)


def test_the_executor_runs_two_layers_natively():
    rng = np.random.default_rng(0)
    x = Value(TensorType("float32", ("T", 4, 6)), "x")
    values, y = [], x
    for features in (6, 24):
        w, r, b = (rng.standard_normal(s).astype(np.float32) * 0.2 for s in ((2, 48, features), (2, 48, 12), (2, 96)))
        values.append((w, r, b))
        y, h, c = F.lstm(y, w, r, b, direction="bidirectional")
        y = F.reshape(F.transpose(y, perm=(0, 2, 1, 3)), np.array([0, 0, -1]))
    executor = Executor(Graph([x], [y, h, c]), ParamStore({}), threads=2)
    for steps in (3, 8):
        data = rng.standard_normal((steps, 4, 6)).astype(np.float32)
        results = list(executor.run({"x": data}).values())
        state = data
        for w, r, b in values:
            out, last_h, last_c = LSTM(direction="bidirectional").reference(numpy_xp, state, w, r, b)
            state = out.transpose(0, 2, 1, 3).reshape(steps, 4, -1)
        for ours, expected in zip(results, (state, last_h, last_c), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


@in_one_item()
@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("LSTM", (3, 4), 5), {}, "x has three dimensions"),
        (("LSTM", (3, 4, 5), 0), {}, "at least one unit"),
        (("Elman", (3, 4, 5), 5), {}, "no recurrent layer 'Elman'"),
        (("RNN", (3, 4, 5), 5), {"direction": "up"}, "no direction 'up'"),
        (("RNN", (3, 4, 5), 5), {"activations": [("cosine", 0, 0)]}, "no activation 'cosine'"),
        (("GRU", (3, 4, 5), 5), {"activations": [("tanh", 0, 0)]}, "1 activations for 1 directions of 2"),
    ],
)
def test_what_is_no_layer(arguments, options, message):
    with pytest.raises(native.Error, match=message):
        native.Recurrent(*arguments, **options)
