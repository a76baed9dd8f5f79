"""Every public object prints as one short line that names its class, in any state."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from combinations import full, in_one_item

import graphkit as gk
from graphkit import data, text
from graphkit.checks.backend import GraphkitBackend
from graphkit.data.images.dataset import Files, Joined, Pixels
from graphkit.data.records.reading import RecordFile, RecordStream
from graphkit.data.records.writing import RecordWriter
from graphkit.dist import kvstore
from graphkit.dist.collectives import compression
from graphkit.dist.communicator import LocalCommunicator
from graphkit.dist.servers.server import Server
from graphkit.executor.devices.groups import GroupDevices
from graphkit.executor.devices.loading import DeviceName
from graphkit.executor.run.engine import Engine
from graphkit.executor.run.params import ParameterArray, ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.stored import StoredArray, StoredFile
from graphkit.ops import F
from graphkit.train import losses, metrics, optim
from graphkit.train.progress import JsonLog, ProgressBar
from graphkit.train.stepper import LazyScalar


def _net(name: str = "net", rows: Any = "N") -> gk.Model:
    x = gk.input("x", [rows, 3])
    return gk.Model(F.softmax(gk.nn.linear(x, 4, name="fc")), name=name)


def _ran(sizes: tuple[int, ...] = (2,), **options: Any) -> Executor:
    executor = _net().compile(**options)
    for size in sizes:
        executor.run({"x": np.ones((size, 3), np.float32)})
    return executor


def _profile() -> gk.profile:
    executor = _ran()
    with gk.profile() as found:
        executor.run({"x": np.ones((2, 3), np.float32)})
    return found


def _dataset(name: str = "points") -> data.Dataset:
    return data.Dataset(np.ones((6, 3), np.float32), np.zeros(6, np.int64), name=name)


class _Lazy(data.LazyDataset):
    def sample(self, number: int, draw: Any) -> tuple[Any, Any]:
        return np.zeros(3, np.float32), 0


class _Own(gk.Callback):
    """A user's callback, which calls no constructor of ours."""

    def __init__(self) -> None:
        self.level = 3
        self.model = object()


def _records(folder: Path) -> Path:
    path = folder / "a.rec"
    with RecordWriter(path) as writer:
        writer.write(b"abc")
    return path


def _tokenizer() -> data.Tokenizer:
    words = {"[UNK]": 0, "a": 1}
    return data.Tokenizer(tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]")).to_str())


def _vocabulary() -> data.Vocabulary:
    return data.Vocabulary.build(["a b c"])


def _sentences(folder: Path) -> data.Sentences:
    return data.Sentences([np.array([2, 3])], np.zeros(1, np.int64), _vocabulary())


def _ratings(folder: Path) -> data.Ratings:
    number = np.zeros(2, np.int64)
    return data.Ratings(number, number, np.ones(2, np.float32), ("u",), ("i",), name="films")


def _pixels() -> Pixels:
    return Pixels(np.zeros((2, 4, 4), np.uint8))


def _table(folder: Path) -> Any:
    path = folder / "table.csv"
    path.write_text("a,y\n1,2\n3,4\n5,6\n")
    return data.read(path)


def _step_builder() -> gk.StepBuilder:
    step = gk.StepBuilder()
    network = step.network(_net())
    step.minimize(gk.reduce_mean(network(gk.input("x", ["N", 3])), keepdims=False), network, optim.SGD(0.1))
    return step


def _stored_file(folder: Path) -> StoredFile:
    path = folder / "data.bin"
    path.write_bytes(bytes(64))
    return StoredFile(path)


def _gradient_net() -> gk.Model:
    x = gk.input("x", [2, 3], "float64")
    return gk.Model(F.reduce_sum(F.tanh(x)), name="wave")


# One of each; a function of a folder.
MADE: dict[str, Callable[[Path], Any]] = {
    "Model": lambda _: _net(),
    "Op": lambda _: F.softmax(gk.input("x", [2])).node.op,
    "Value": lambda _: gk.input("x", ["N", 2]),
    "Node": lambda _: F.relu(gk.input("x", ["N", 2])).node,
    "Graph": lambda _: _net().graph,
    "TensorType": lambda _: gk.input("x", ["N", 2]).type,
    "TensorArray": lambda _: gk.TensorArray(3, (2,)),
    "Trainer": lambda _: gk.Trainer(_net(), "softmax_cross_entropy"),
    "Callback": lambda _: _Own(),
    "EarlyStopping": lambda _: gk.callbacks.EarlyStopping(3),
    "ReduceOnPlateau": lambda _: gk.callbacks.ReduceOnPlateau(3),
    "KeepBest": lambda _: gk.callbacks.KeepBest(),
    "Executor": lambda _: _ran(),
    "AdapterSet": lambda _: gk.AdapterSet(_net(), {}, rank=2, layers="fc"),
    "Program": lambda _: _ran()._choice.latest,
    "SizedProgram": lambda _: _ran((2, 3))._choice.latest,
    "ProgramCache": lambda _: _ran((2, 3))._programs,
    "Plan": lambda _: _ran().plan,
    "Profile": lambda _: _profile(),
    "ParamStore": lambda _: _net().params,
    "ParameterArray": lambda _: ParameterArray(_net().params, "fc_weight"),
    "Engine": lambda _: Engine(1),
    "Variable": lambda _: Engine(1).variable(),
    "GroupDevices": lambda _: GroupDevices([DeviceName("cpu", 0)], {"a": 0}, 0),
    "GraphkitRep": lambda _: GraphkitBackend.prepare(_net().to_onnx()),
    "Report": lambda _: gk.verify(_net()),
    "OutputReport": lambda _: gk.verify(_net()).outputs[0],
    "GradientReport": lambda _: gk.check_gradient(_gradient_net()),
    "GradientEntry": lambda _: gk.check_gradient(_gradient_net()).entries[0],
    "NonFinite": lambda _: gk.find_nonfinite(_net(), {"x": np.full((1, 3), np.nan, np.float32)}),
    "RateCurve": lambda _: gk.find_lr(gk.Trainer(_net(), "softmax_cross_entropy"), _dataset(), steps=3, batch_size=2),
    "LazyScalar": lambda _: LazyScalar(np.float32(0.5).reshape(())),
    "ProgressBar": lambda _: ProgressBar(False),
    "JsonLog": lambda folder: JsonLog(folder),
    "OptimizerUpdater": lambda _: optim.SGD(0.1).updater(),
    "StepBuilder": lambda _: _step_builder(),
    "StepNetwork": lambda _: gk.StepBuilder().network(_net()),
    "TrainingStep": lambda _: _step_builder().build({}),
    "CustomTrainer": lambda _: gk.CustomTrainer(_step_builder().build({})),
    "KVStore": lambda _: kvstore.create("local"),
    "LocalCommunicator": lambda _: LocalCommunicator(),
    "Server": lambda _: Server(2),
    "Compression": lambda _: compression.create({"type": "2bit", "threshold": 0.25}),
    "Batches": lambda _: _dataset().batches(2),
    "Batch": lambda _: next(iter(_dataset().batches(2))),
    "Dataset": lambda _: _dataset(),
    "LazyDataset": lambda _: _Lazy(4, name="lazy"),
    "MapDataset": lambda _: data.MapDataset([(np.zeros(3), 0)]),
    "IterableDataset": lambda _: data.IterableDataset(lambda: iter(()), {"x": 2}),
    "Splits": lambda _: _dataset().split(0.5),
    "Workers": lambda _: data.Workers(2),
    "Augment": lambda _: data.Augment(),
    "Preprocess": lambda _: data.Preprocess(),
    "Files": lambda folder: Files(folder, ["a.png"]),
    "Pixels": lambda _: _pixels(),
    "Joined": lambda _: Joined([_pixels()]),
    "RecordWriter": lambda folder: RecordWriter(folder / "b.rec"),
    "RecordFile": lambda folder: RecordFile(_records(folder)),
    "RecordStream": lambda folder: RecordStream(_records(folder)),
    "Tokenizer": lambda _: _tokenizer(),
    "Vocabulary": lambda _: _vocabulary(),
    "Loss": lambda _: losses.get("softmax_cross_entropy", label_smoothing=0.1),
    "StoredFile": _stored_file,
    "StoredArray": lambda folder: StoredArray(_stored_file(folder), 8, np.dtype(np.float32), (2, 3)),
    "SequenceType": lambda _: gk.SequenceType(gk.TensorType(gk.DType.FLOAT32, (2,))),
    "OptionalType": lambda _: gk.OptionalType(gk.TensorType(gk.DType.FLOAT32, (2,))),
    "DType": lambda _: gk.DType.FLOAT32,
    "Onnx": lambda _: gk.Onnx("Relu", 14),
    "Sample": lambda _: gk.Sample([1.0]),
    "Rand": lambda _: gk.Rand(2, 3),
    "SequenceSample": lambda _: gk.SequenceSample([1.0]),
    "OptionalSample": lambda _: gk.OptionalSample(np.ones(2)),
    "TensorBoard": lambda folder: gk.TensorBoard(folder),
    "LBFGS": lambda _: gk.LBFGS(_net()),
    "CSVLogger": lambda folder: gk.CSVLogger(folder / "log.csv"),
    "RunLogger": lambda folder: gk.RunLogger(print),
    "PythonLogger": lambda folder: gk.PythonLogger(),
    "TableData": _table,
    "Ratings": _ratings,
    "Sentences": _sentences,
    "TokenStream": lambda _: data.TokenStream(np.arange(40), _vocabulary()),
    "ImageDataset": lambda _: data.ImageDataset(_pixels(), np.zeros(2, np.int64), data.Preprocess()),
}
# Kinds of one thing whose values are enumerated below.
EVERY = [
    *(optim.get(name) for name in optim.names()),
    *(optim.get(name).schedule for name in optim.names()),
    *(metrics.get(name) for name in metrics.names()),
    *(compression.create(kind) for kind in compression.TYPES),
    *(losses.get(name) for name in losses.names()),
    *(gk.init.of(name) for name in gk.init.names()),
    optim.EMA(0.9),
    optim.Warmup(optim.Cosine(0.1, 100), 10),
    optim.OneCycle(0.1, 100),
]


def _check(item: Any, name: str) -> str:
    shown = repr(item)
    assert " at 0x" not in shown
    assert name in shown
    assert "no more is known" not in shown
    assert len(shown) <= 200
    assert shown.isprintable()
    return shown


@in_one_item()
@pytest.mark.parametrize("name", MADE)
def test_repr_names_the_class_in_one_short_line(name: str, tmp_path: Path) -> None:
    item = MADE[name](tmp_path)
    _check(item, item.name if name == "Op" else type(item).__name__)


@in_one_item()
@pytest.mark.parametrize("item", EVERY, ids=lambda item: type(item).__name__)
def test_repr_of_settings_names_the_class(item: Any) -> None:
    _check(item, type(item).__name__)


def test_every_public_class_has_an_example() -> None:
    homes = [(gk, gk._PUBLIC), (data, data.__all__)]
    known = {name for home, names in homes for name in names if inspect.isclass(getattr(home, name))}
    errors = {"GraphkitError", "GraphkitWarning"}
    assert known - errors <= set(MADE)
    modules = (optim, metrics, losses, gk.init, gk.callbacks)
    own = {c for module in modules for c in vars(module).values() if inspect.isclass(c)}
    own = {c for c in own if c.__module__.startswith("graphkit.train") and not c.__name__.startswith("_")}
    plain = [c.__name__ for c in own if c.__repr__ is object.__repr__ and not getattr(c, "_is_protocol", False)]
    assert [name for name in plain if not issubclass(getattr(gk.errors, name, int), Exception)] == []


# --- edges ----------------------------------------------------------------------------------------------------


@in_one_item()
@pytest.mark.parametrize("name", ["", "two\nlines", "\x1b[2J", "x" * 100_000, "'quoted'", "\udc80", "\u202e"])
def test_odd_names_stay_on_one_short_line(name: str) -> None:
    net = _net(name)
    for item in (net, net.graph, net.compile(), gk.Trainer(net, "softmax_cross_entropy"), _dataset(name)):
        _check(item, type(item).__name__)
    x = F.relu(gk.input("x", [2]), name=name)
    for value in (x, x.node):
        _check(value, type(value).__name__)


def test_graphs_without_inputs_rank_or_sizes() -> None:
    for graph in (Graph([], []), gk.Model(F.constant(value=np.ones(2)), name="").graph):
        _check(graph, "Graph")
    shapeless = gk.input("x", None)
    net = gk.Model(F.relu(shapeless))
    assert "(x: float32[...])" in _check(net, "Model")
    _check(net.compile(), "Executor")
    assert "2*N" in _check(gk.Model(F.relu(gk.input("x", ["2*N", 3]))), "Model")


@pytest.mark.parametrize("count", [10_000, full(100_000)])
def test_many_inputs_and_nodes_are_cut_off(count: int) -> None:
    values = [gk.input(f"x{i}", [2]) for i in range(count)]
    total = F.sum(*values)
    _check(total.node, "Node")
    graph = Graph(values, [total])
    assert f"and {count - 3} more" in _check(graph, "Graph")
    assert graph._names is None
    chain = values[0]
    for _ in range(count):
        chain = F.neg(chain)
    long = Graph([values[0]], [chain])
    _check(long, "Graph")
    assert long._names is None


@in_one_item()
@pytest.mark.parametrize(
    "kind",
    [gk.Model, Graph, Node, Value, Executor, gk.Trainer, kvstore.KVStore, ParamStore, Engine, data.Dataset,
     data.Batches, data.Workers, gk.CustomTrainer, RecordWriter, StoredFile, gk.TensorBoard, ProgressBar, Server],
    ids=lambda kind: kind.__name__,
)  # fmt: skip
def test_half_built_objects_have_a_repr(kind: Any) -> None:
    shown = repr(kind.__new__(kind))
    assert kind.__name__ in shown
    assert "no more is known" in shown
    assert len(shown) <= 200


def test_failed_and_closed_objects_have_a_repr(tmp_path: Path) -> None:
    engine = Engine(1)
    engine.push(lambda: 1 / 0)
    engine.close()
    _check(engine, "Engine")
    workers = data.Workers(1)
    workers.close()
    assert repr(workers) == "<Workers: 1, not started>"
    executor = _ran()
    with pytest.raises(gk.GraphkitError):
        executor.run({"x": np.ones((2, 4), np.float32)})
    _check(executor, "Executor")
    file = _stored_file(tmp_path)
    file._close()
    assert "closed" in _check(file, "StoredFile")


def test_repr_says_what_matters() -> None:
    executor = _ran((2, 3), threads=1)
    shown = _check(executor, "Executor")
    assert "device cpu, 1 thread, precision f32" in shown
    assert "2 programs" in shown
    assert "parameters 64 B" in shown
    assert "16 parameters, 64 B" in repr(_net())
    trainer = gk.Trainer(_net(), "softmax_cross_entropy", "adam", threads=1)
    assert "update 0, epoch 0" in repr(trainer)
    trainer.step(np.ones((2, 3), np.float32), np.zeros(2, np.int64))
    assert "update 1, epoch 0" in repr(trainer)
    assert "Adam, loss softmax_cross_entropy" in _check(trainer, "Trainer")
    store = kvstore.create("local")
    store.init("w", np.zeros(512, np.float32))
    assert repr(store) == "<LocalKVStore 'local': rank 0 of 1, 1 key, 2.0 KiB>"
    assert "arena" in repr(executor.plan)


def test_repr_compiles_and_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, trainer = _net(rows=2).compile(), gk.Trainer(_net(), "softmax_cross_entropy")

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a repr compiles a program")

    monkeypatch.setattr("graphkit.executor.run.device_builder.compile_graph", refuse)
    for item in (executor, trainer, executor._programs):
        _check(item, type(item).__name__)


def test_repr_of_what_another_thread_changes() -> None:
    store = kvstore.create("local")

    def fill() -> None:
        for number in range(2000):
            store.init(number, np.zeros(1, np.float32))

    thread = threading.Thread(target=fill)
    thread.start()
    while thread.is_alive():
        _check(store, "KVStore")
    thread.join()
    assert "2,000 keys" in _check(store, "KVStore")


def test_short_repr_survives_facts_that_raise() -> None:
    def facts() -> Iterator[str]:
        yield "head"
        yield "first"
        raise RuntimeError("gone")

    assert text.short_repr(3, facts) == "<int head: first, no more is known (RuntimeError)>"
    assert text.listed("abcde", 5) == "a, b, c and 2 more"
    assert text.listed("ab", 2) == "a, b"


def test_lazy_scalar_prints_as_a_number() -> None:
    scalar = LazyScalar(np.asarray(0.5, np.float32))
    assert (str(scalar), repr(scalar), f"{scalar:.2f}") == ("0.5", "LazyScalar(0.5)", "0.50")


def test_earlier_names_are_the_same_objects():
    assert gk.Items is gk.SequenceSample
    assert gk.Perhaps is gk.OptionalSample
