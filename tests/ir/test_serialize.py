"""JSON and weights: bit-exact round trips, damage of every kind, and crashes at every moment of a save."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from combinations import in_one_item

from graphkit.errors import InvalidModel, RuntimeFailure, TypeMismatch, UnsafeModel, UnsupportedOperator, UsageError
from graphkit.ir import atomic, serialize
from graphkit.ir.codec import INLINE_BYTES
from graphkit.ir.graph import Graph, Value
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import DType, SequenceType, TensorType
from graphkit.ops import F, Op, op, registry

resolve = registry.get


def bits(dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """An array whose bytes are arbitrary where the type allows it: NaNs with payloads, subnormals, -0.0."""
    rng = np.random.default_rng(len(shape))
    count = int(np.prod(shape, dtype=np.int64))
    if dtype is DType.STRING:
        words = ["", "plain", "ünïcode ☃", "nul\0inside", 'quote"\\', "\ud800 lone surrogate"]
        array = np.empty(count, object)
        array[:] = [words[i % len(words)] for i in range(count)]
        return array.reshape(shape)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    limit = {DType.INT4: 16, DType.UINT4: 16, DType.INT2: 4, DType.UINT2: 4, DType.FLOAT4E2M1: 16}.get(dtype, 256)
    raw = rng.integers(0, limit, count * dtype.itemsize).astype(np.uint8)
    return raw.view(dtype.numpy).reshape(shape)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes()


SPECIAL = np.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000, 0x7F800000, 0x00000001], np.uint32).view(np.float32)


def parameter(name: str, array: np.ndarray) -> Value:
    return Value(TensorType(array.dtype, array.shape), name, role="parameter")


@in_one_item()
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 700)], ids=str)
@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_tensors_round_trip_bit_for_bit(tmp_path: Path, dtype: DType, shape: tuple[int, ...]) -> None:
    array = bits(dtype, shape)
    p = parameter("p", array)
    constant = F.constant(value=Tensor(array))
    path = tmp_path / "net.json"
    serialize.save(path, Graph([p], [p, constant], name="net"), {"p": array})
    graph, params, _ = serialize.load(path, resolve)
    assert same_bits(params["p"], array)
    assert same_bits(graph.outputs[1].node.op.value.array, array)
    inline = serialize.from_dict(json.loads(json.dumps(serialize.to_dict(Graph([], [constant])))), resolve)
    assert same_bits(inline.outputs[0].node.op.value.array, array)


def test_nan_payloads_and_signed_zeros(tmp_path: Path) -> None:
    p = parameter("p", SPECIAL)
    path = tmp_path / "net.json"
    serialize.save(path, Graph([p], [F.add(p, SPECIAL)]), {"p": SPECIAL})
    graph, params, _ = serialize.load(path, resolve)
    assert same_bits(params["p"], SPECIAL)
    assert same_bits(graph.nodes[0].op.value.array, SPECIAL)


def test_big_endian_and_strided_arrays(tmp_path: Path) -> None:
    array = np.arange(6, dtype=">f4").reshape(2, 3).T
    p = parameter("p", array.astype(np.float32))
    path = tmp_path / "net.json"
    serialize.save(path, Graph([p], [p]), {"p": array})
    _, params, _ = serialize.load(path, resolve)
    np.testing.assert_array_equal(params["p"], array)
    assert params["p"].dtype == np.float32
    assert not params["p"].flags.writeable


def test_other_readers_open_the_weights(tmp_path: Path) -> None:
    arrays = {"a": np.arange(5, dtype=np.float32), "b": np.arange(3, dtype=np.int8), "c": np.float64(2.5).reshape(())}
    values = [parameter(k, v) for k, v in arrays.items()]
    serialize.save(tmp_path / "net.json", Graph(values, values), arrays)
    (file,) = tmp_path.glob("*.safetensors")
    found = safetensors.numpy.load_file(file)
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert same_bits(found[name], array)


def everything() -> tuple[Graph, dict[str, np.ndarray]]:
    x = Value(TensorType("float32", ("N", 4)), "x", attrs={"lr_mult": 0.5, "tags": ["a", None, True]})
    w = Value(
        TensorType("float32", (4,)), "w", role="parameter", attrs={"init": {"type": "normal", "std": float("inf")}}
    )
    s = Value(TensorType("float32", (4,)), "s", role="state")
    h = F.mul(x, w, name="scale", meta={"ctx": "a"})
    big = F.constant(value=np.arange(4000, dtype=np.float32).reshape(1000, 4))
    y, indices = F.top_k(h, np.array([2]), axis=-1) if registry.function("top_k") else (h, F.shape(h))
    total = F.reduce_sum(h, np.array([0]), keepdims=False)
    graph = Graph(
        [x, w, s],
        [y, indices, F.leaky_relu(h, alpha=float("nan")), F.cast(h, to="bfloat16"), big],
        [(s, F.add(s, total))],
        "everything",
        output_names=["y", "i", "leaky", "half", "big"],
        meta={"author": "ünï"},
    )
    return graph, {"w": SPECIAL[:4], "s": np.zeros(4, np.float32)}


def test_everything_round_trips(tmp_path: Path) -> None:
    graph, params = everything()
    path = tmp_path / "net.json"
    serialize.save(path, graph, params, {"producer": "test"})
    again, arrays, meta = serialize.load(path, resolve)
    assert str(again) == str(graph)
    assert meta == {"producer": "test"}
    assert again.meta == graph.meta
    assert again.inputs[0].attrs == graph.inputs[0].attrs
    assert again.inputs[1].attrs == graph.inputs[1].attrs
    assert [v.role for v in again.inputs] == ["data", "parameter", "state"]
    assert next(n for n in again.nodes if n.name == "scale").meta == {"ctx": "a"}
    assert all(same_bits(arrays[k], v) for k, v in params.items())
    text = path.read_text()
    serialize.save(path, again, arrays, meta)
    assert path.read_text() == text


def test_float_attributes_keep_their_bits() -> None:
    x = Value(TensorType("float32", (2,)), "x")
    payload = struct.unpack(">d", bytes.fromhex("7ff8000000000123"))[0]
    for alpha in (payload, float("inf"), float("-inf"), -0.0, 0.1, 5e-324, 1.7976931348623157e308):
        graph = Graph([x], [F.leaky_relu(x, alpha=alpha)])
        again = serialize.from_dict(json.loads(json.dumps(serialize.to_dict(graph))), resolve)
        assert struct.pack(">d", again.nodes[0].op.alpha) == struct.pack(">d", alpha)


def test_user_attributes_that_look_like_tags() -> None:
    attrs = {"a": {"float": 3}, "b": {"tensor": {"x": 1}}, "c": {"object": {"float": "q"}}, "d": {"float": 1.0, "e": 2}}
    x = Value(TensorType("float32", ()), "x", attrs=attrs)
    again = serialize.from_dict(json.loads(json.dumps(serialize.to_dict(Graph([x], [x])))), resolve)
    assert again.inputs[0].attrs == attrs


def test_types_of_every_kind() -> None:
    kinds = [
        TensorType("float32"),
        TensorType("float32", ()),
        TensorType("int64", (2,)),
        TensorType("float32", ("batch size", "2*N + 1", "max(N, 3)", 0)),
        SequenceType(TensorType("string", ("N",))),
    ]
    values = [Value(t, f"x{i}") for i, t in enumerate(kinds)]
    again = serialize.from_dict(json.loads(json.dumps(serialize.to_dict(Graph(values, values)))), resolve)
    assert [v.type for v in again.inputs] == kinds


def test_one_node_per_line(tmp_path: Path) -> None:
    graph, params = everything()
    serialize.save(tmp_path / "net.json", graph, params)
    lines = (tmp_path / "net.json").read_text().splitlines()
    assert sum('"op": ' in line for line in lines) == len(graph.nodes)
    assert not any(line.count('"op": ') > 1 for line in lines)


def test_subgraphs_are_indented_below_their_node(tmp_path: Path) -> None:
    x, p = Value(TensorType("float32", ("N",)), "x"), Value(TensorType("bool", ()), "p")
    a, b = (Value(TensorType("float32", ("N",)), "c") for _ in range(2))
    big = np.arange(INLINE_BYTES, dtype=np.float32)
    then = Graph([a], [F.add(F.reduce_sum(F.constant(value=big)), F.relu(a))], name="then")
    y = F.if_(p, x, then_branch=then, else_branch=Graph([b], [F.neg(b)], name="else"))
    path = tmp_path / "net.json"
    serialize.save(path, Graph([x, p], [y]), {})
    again, _, _ = serialize.load(path, resolve)
    assert str(again) == str(Graph([x, p], [y]))
    lines = path.read_text().splitlines()
    assert sum('"op": ' in line for line in lines) == sum(line.count('"op": ') for line in lines)


# --- what is wrong with a file -------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    graph, params = everything()
    path = tmp_path / "net.json"
    serialize.save(path, graph, params)
    return path


def weights_of(path: Path) -> Path:
    (file,) = path.parent.glob("*.safetensors")
    return file


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def node(document: dict[str, Any], operator: str) -> dict[str, Any]:
    return next(n for n in document["graph"]["nodes"] if n["op"] == operator)


def set_item(*keys: Any) -> Callable[[dict[str, Any]], None]:
    *where, last, item = keys

    def change(document: dict[str, Any]) -> None:
        target: Any = document
        for key in where:
            target = target[key]
        target[last] = item

    return change


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "newer version": (set_item("version", 3), "format version 3; this graphkit reads up to 2"),
    "no version": (lambda d: d.pop("version"), "version None"),
    "other format": (set_item("format", "other"), "not a graphkit model"),
    "no graph": (lambda d: d.pop("graph"), "'graph' is missing"),
    "nodes are no list": (set_item("graph", "nodes", {}), "'nodes' is a dict"),
    "unknown value": (lambda d: node(d, "Mul").update(inputs=["x", "nope"]), "no earlier value is called 'nope'"),
    "taken name": (lambda d: node(d, "Mul")["outputs"][0].update(name="x"), "the name 'x' is already used"),
    "unknown attribute": (lambda d: node(d, "Cast")["attrs"].update(axle=1), "no attribute 'axle'"),
    "attribute of another kind": (lambda d: node(d, "Cast")["attrs"].update(to=[1]), "Cast"),
    "stored type": (lambda d: node(d, "Mul")["outputs"][0].update(shape=["N", 5]), "stored type of 'scale'"),
    "stored dtype": (lambda d: node(d, "Mul")["outputs"][0].update(dtype="float64"), "stored type of 'scale'"),
    "unknown dtype": (lambda d: d["graph"]["inputs"][0].update(dtype="float31"), "unknown element type 'float31'"),
    "negative dimension": (lambda d: d["graph"]["inputs"][0].update(shape=["N", -4]), "negative"),
    "dimension is a float": (lambda d: d["graph"]["inputs"][0].update(shape=["N", 4.5]), "4.5 is not a dimension"),
    "unknown role": (lambda d: d["graph"]["inputs"][0].update(role="boss"), "role 'boss'"),
    "too many outputs": (lambda d: node(d, "Mul")["outputs"].append({"name": "q", "dtype": "bool", "shape": []}),
                         "number of outputs is 2 in the file"),
    "weights outside": (set_item("weights", "file", "../net.safetensors"), "own folder"),
    "weights absolute": (set_item("weights", "file", "/etc/passwd"), "own folder"),
    "weights unnamed": (set_item("weights", None), "names no weights file"),
    "weights missing": (set_item("weights", "file", "gone.safetensors"), "'gone.safetensors', which holds tensor"),
    "other hash": (set_item("weights", "hash", "blake2b8:" + "0" * 64), "hash blake2b8 differs"),
    "other SHA-256": (set_item("weights", "hash", "sha256:" + "0" * 64), "SHA-256 differs"),
    "unknown hash": (set_item("weights", "hash", "md5:" + "0" * 32), "has the hash 'md5'"),
    "no hash": (lambda d: d["weights"].pop("hash"), "lacks its hash"),
    "other size of weights": (set_item("weights", "bytes", 5), "saved with has 5"),
    "other shape": (lambda d: d["graph"]["inputs"][1]["tensor"].update(shape=[2, 2]), "tensor 'w' is F32"),
    "parameter does not fit": (lambda d: d["graph"]["inputs"][1].update(shape=[7]), "parameter 'w' is float32"),
    "tensor not in the file": (lambda d: d["graph"]["inputs"][1]["tensor"].update(stored="v"), "lacks tensor 'v'"),
    "huge shape": (lambda d: d["graph"]["inputs"][1]["tensor"].update(shape=[1 << 60, 1 << 60]), "tensor 'w' is F32"),
    "constant is short": (
        lambda d: node(d, "Constant")["attrs"]["value"]["tensor"].update(values=[1, 2, 3]), "3 values"),
    "value out of range": (
        lambda d: node(d, "Constant")["attrs"]["value"]["tensor"].update(values=[1 << 70]), "tensor"),
    "value of another kind": (
        lambda d: node(d, "Constant")["attrs"]["value"]["tensor"].update(values=[1.5]), "not int64"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(saved: Path, damage: str) -> None:
    change, message = DAMAGE[damage]
    if "value" in damage and not registry.function("top_k"):
        pytest.skip("needs an integer constant")
    edit(saved, change)
    with pytest.raises(InvalidModel, match=message) as caught:
        serialize.load(saved, resolve)
    assert "net.json" in str(caught.value)
    assert caught.value.exit_code == 4


def test_files_of_version_1_are_read(saved: Path) -> None:
    expected = serialize.load(saved, resolve)[1]

    def to_version_1(document: dict[str, Any]) -> None:
        del document["weights"]["hash"]
        document["weights"]["sha256"] = hashlib.sha256(weights_of(saved).read_bytes()).hexdigest()
        document["version"] = 1

    edit(saved, to_version_1)
    found = serialize.load(saved, resolve)[1]
    assert {n: np.asarray(a).tobytes() for n, a in found.items()} == {
        n: np.asarray(a).tobytes() for n, a in expected.items()
    }
    weights_of(saved).write_bytes(weights_of(saved).read_bytes()[:-1] + b"?")
    with pytest.raises(InvalidModel, match="SHA-256 differs"):
        serialize.load(saved, resolve)


def test_flipped_bytes_of_weights_are_found(saved: Path) -> None:
    content = weights_of(saved).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    for place in np.linspace(start, len(content) - 1, 12, dtype=int):
        weights_of(saved).write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        with pytest.raises(InvalidModel, match="hash blake2b8 differs"):
            serialize.load(saved, resolve)


def test_truncated_weights_are_named(saved: Path) -> None:
    content = weights_of(saved).read_bytes()
    for size in (0, 7, 8, 100, len(content) - 1):
        weights_of(saved).write_bytes(content[:size])
        with pytest.raises(InvalidModel, match=r"weights file .* is truncated or damaged"):
            serialize.load(saved, resolve)


def test_weights_outside_are_unsafe(saved: Path, tmp_path: Path) -> None:
    edit(saved, set_item("weights", "file", "../x.safetensors"))
    with pytest.raises(UnsafeModel):
        serialize.load(saved, resolve)


def test_link_out_of_the_folder_is_unsafe(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "w.safetensors"
    file, before = weights_of(saved), serialize.load(saved, resolve)[1].keys()
    os.replace(file, elsewhere)
    file.symlink_to(elsewhere)
    with pytest.raises(UnsafeModel, match=r"a symbolic link to .*w.safetensors: pass external_root"):
        serialize.load(saved, resolve)
    with pytest.raises(UnsafeModel):
        serialize.load(saved, resolve, external_root=saved.parent / "other")
    assert serialize.load(saved, resolve, external_root=elsewhere.parent)[1].keys() == before


def test_unknown_operators_are_listed_together(saved: Path) -> None:
    edit(saved, lambda d: (node(d, "Mul").update(op="Mull"), node(d, "Cast").update(op="Caste", domain="x")))
    with pytest.raises(UnsupportedOperator, match=r"ai.onnx.Mull \(node 'scale'\), x.Caste"):
        serialize.load(saved, resolve)


def test_type_conflict_names_the_node(saved: Path) -> None:
    edit(saved, lambda d: d["graph"]["inputs"][0].update(shape=["N", 5]))
    with pytest.raises(TypeMismatch, match=r"scale.*5.*4"):
        serialize.load(saved, resolve)


@in_one_item()
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"<!DOCTYPE html><html></html>", "not a graphkit model"),
        (b'{"format": "graphkit", "version": 1', "not a graphkit model"),
        (b"[1, 2]", "not a graphkit model"),
        (b"\xff\xfe\x00", "not a graphkit model"),
        (b"[" * 100_000, "not a graphkit model"),
        (b'{"format": "graphkit", "version": NaN}', "NaN is not JSON"),
    ],
)
def test_not_a_model(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "net.json"
    path.write_bytes(content)
    with pytest.raises(InvalidModel, match=message):
        serialize.load(path, resolve)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        serialize.load(tmp_path / "net.json", resolve)


def test_every_truncation_of_the_weights_is_noticed(saved: Path) -> None:
    file = weights_of(saved)
    whole = file.read_bytes()
    for size in (0, 4, 8, 9, 100, 1000, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        with pytest.raises(InvalidModel, match=file.name):
            serialize.load(saved, resolve)
    file.write_bytes(whole + b"\0")
    with pytest.raises(InvalidModel, match="truncated or damaged"):
        serialize.load(saved, resolve)


def test_truncated_tensor_is_named(saved: Path) -> None:
    file = weights_of(saved)
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(InvalidModel, match=r"should hold tensor '.*truncated"):
        serialize.load(saved, resolve)


@in_one_item()
@pytest.mark.parametrize(
    ("names", "held"), [("a", "tensor 'a',"), ("ab", "tensor '.' and 1 more,"), ("abc", "and 2 more,")]
)
def test_a_damaged_file_is_said_to_hold_its_tensors(tmp_path: Path, names: str, held: str) -> None:
    values = [Value(TensorType("float32", (2,)), name, role="parameter") for name in names]
    serialize.save(tmp_path / "net.json", Graph(values, values), {name: np.zeros(2, np.float32) for name in names})
    weights_of(tmp_path / "net.json").write_bytes(b"short")
    with pytest.raises(InvalidModel, match=f"which should hold .*{held}"):
        serialize.load(tmp_path / "net.json", resolve)


def test_flipped_bit_is_noticed(saved: Path) -> None:
    file = weights_of(saved)
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(InvalidModel, match="hash blake2b8 differs"):
        serialize.load(saved, resolve)


def header(entries: Any) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "content",
    [
        (1 << 62).to_bytes(8, "little"),
        header({"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}),
        header({"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}) + b"1234",
        header({"w": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}),
        header({"w": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}}) + b"1234",
        header({"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}) + b"12345678",
        header({"w": {"shape": [1]}}),
        header({"w": None}),
        header([]),
        b"\2\0\0\0\0\0\0\0{]",
    ],
)
def test_hostile_weights_headers(saved: Path, content: bytes) -> None:
    """Sizes are checked against the file before anything is allocated."""
    weights_of(saved).write_bytes(content)
    with pytest.raises(InvalidModel, match="weights file"):
        serialize.load(saved, resolve)


def test_random_damage_never_escapes(saved: Path) -> None:
    """A flipped byte anywhere in the JSON gives a graph or a graphkit error, nothing else."""
    from graphkit.errors import GraphkitError

    original = saved.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        content = bytearray(original)
        for place in rng.integers(0, len(content), 3):
            content[place] = rng.integers(0, 256)
        saved.write_bytes(bytes(content))
        try:
            serialize.load(saved, resolve)
        except GraphkitError:
            continue


@in_one_item()
@pytest.mark.parametrize("depth", [64, 65, 100])
def test_deeply_nested_subgraphs_are_refused(depth: int) -> None:
    """A graph of 64 is read, and its innermost If refused, which lacks a branch."""
    record: dict[str, Any] = {"name": "", "meta": {}, "inputs": [], "nodes": [], "outputs": [], "updates": []}
    for _ in range(depth):
        inner = {"name": "n", "op": "If", "inputs": [], "outputs": [], "graphs": {"then_branch": record}}
        record = {"name": "", "meta": {}, "inputs": [], "nodes": [inner], "outputs": [], "updates": []}
    with pytest.raises(InvalidModel, match="64 deep" if depth > 64 else "else_branch"):
        serialize.from_dict(record, resolve)


# --- what can go wrong while saving ----------------------------------------------------------------------


def test_parameters_must_fit(tmp_path: Path) -> None:
    graph, params = everything()
    with pytest.raises(InvalidModel, match=r"parameter 'w' is float32\[4\]; its array is float32\[5\]"):
        serialize.save(tmp_path / "net.json", graph, params | {"w": np.zeros(5, np.float32)})
    with pytest.raises(InvalidModel, match="no input for parameters 'q'"):
        serialize.save(tmp_path / "net.json", graph, params | {"q": np.zeros(5, np.float32)})
    assert list(tmp_path.iterdir()) == []


def test_old_weights_go_when_nothing_names_them(saved: Path) -> None:
    first = weights_of(saved)
    graph, params = everything()
    copy = saved.with_name("copy.json")
    copy.write_bytes(saved.read_bytes())
    serialize.save(saved, graph, params | {"s": np.ones(4, np.float32)})
    assert first.exists(), "copy.json still needs it"
    serialize.load(copy, resolve)
    copy.unlink()
    other = saved.with_name("network.json")
    serialize.save(other, graph, params)
    serialize.save(saved, graph, params | {"s": np.full(4, 2, np.float32)})
    assert not first.exists()
    assert len(list(saved.parent.glob("net.*.safetensors"))) == 1
    serialize.load(other, resolve)


def test_weights_of_another_save_at_the_same_time_stay(saved: Path) -> None:
    """They may be complete before the JSON file that names them is renamed."""
    graph, params = everything()
    weights = weights_of(saved)
    with atomic.PendingFile(saved.parent, saved.name):
        serialize.save(saved, graph, params | {"s": np.ones(4, np.float32)})
        assert weights.exists()
    serialize.save(saved, graph, params | {"s": np.full(4, 2, np.float32)})
    assert len(list(saved.parent.glob("net.*.safetensors"))) == 1


def test_another_save_renames_its_file_before_old_weights_go(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, params = everything()
    first, weights = saved.read_bytes(), weights_of(saved)

    def has_pending(path: Path) -> bool:
        path.write_bytes(first)
        return False

    monkeypatch.setattr(serialize, "has_pending", has_pending)
    serialize.save(saved, graph, params | {"s": np.ones(4, np.float32)})
    assert weights.exists()
    serialize.load(saved, resolve)


def test_old_weights_that_another_save_writes_again_stay(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, params = everything()
    weights = weights_of(saved)

    def has_pending(path: Path) -> bool:
        again = path.with_name("again")
        again.write_bytes(weights.read_bytes())
        again.replace(weights)
        return False

    monkeypatch.setattr(serialize, "has_pending", has_pending)
    serialize.save(saved, graph, params | {"s": np.ones(4, np.float32)})
    assert weights.exists()


def test_a_save_while_the_file_is_read(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, params = everything()
    read = serialize.read_weights

    def read_later(*args: Any) -> Any:
        monkeypatch.undo()
        serialize.save(saved, graph, params | {"s": np.ones(4, np.float32)})
        return read(*args)

    monkeypatch.setattr(serialize, "read_weights", read_later)
    _, arrays, _ = serialize.load(saved, resolve)
    assert float(arrays["s"][0]) == 1


def test_model_without_tensors_has_no_weights_file(saved: Path) -> None:
    x = Value(TensorType("float32", (2,)), "x")
    serialize.save(saved, Graph([x], [F.neg(x)]), {})
    assert [p.name for p in saved.parent.iterdir()] == ["net.json"]
    serialize.load(saved, resolve)


STAGES = ("write", "finish", "commit")


def interrupted_saves(interrupt: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Call `interrupt` at the n-th call of each file operation, for every n; yields the list of calls so far."""
    for stage in STAGES:
        for number in range(1, 100):
            calls: list[str] = []
            original = getattr(atomic.PendingFile, stage)

            def patched(self: Any, *args: Any, original: Any = original, n: int = number, calls: list = calls) -> Any:
                calls.append("called")
                if len(calls) == n:
                    interrupt()
                return original(self, *args)

            with monkeypatch.context() as patch:
                patch.setattr(atomic.PendingFile, stage, patched)
                yield calls
            if len(calls) < number:
                break


def test_a_full_disk_leaves_the_old_model(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {p.name: p.read_bytes() for p in saved.parent.iterdir()}
    graph, params = everything()
    changed = params | {"s": np.ones(4, np.float32)}
    failed = 0

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for _ in interrupted_saves(full, monkeypatch):
        message = ""
        try:
            serialize.save(saved, graph, changed)
        except RuntimeFailure as error:
            message = str(error)
        if message:
            failed += 1
            assert message.endswith("No space left on device")
            assert {p.name: p.read_bytes() for p in saved.parent.iterdir()} == before
        else:
            for path in saved.parent.iterdir():
                path.unlink()
            for name, content in before.items():
                saved.with_name(name).write_bytes(content)
    assert failed >= 5


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_kill_at_any_moment_leaves_a_loadable_pair(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child process is gone in the middle of a save: no buffer is flushed, no clean-up runs."""
    graph, params = everything()
    killed = 0
    for version, calls in enumerate(interrupted_saves(lambda: os._exit(9), monkeypatch), 1):
        state = np.full(4, version, np.float32)
        child = os.fork()
        if child == 0:
            try:
                serialize.save(saved, graph, params | {"s": state})
            finally:
                os._exit(0 if calls else 1)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        killed += code == 9
        if code == 0:
            calls.clear()  # this number of calls was not reached: the stage is done
        else:
            calls.extend(["called"] * 100)
        _, arrays, _ = serialize.load(saved, resolve)
        assert float(arrays["s"][0]) in (0.0, *range(1, version + 1))
    assert killed >= 5
    serialize.save(saved, graph, params)
    assert len(list(saved.parent.glob("net.*.safetensors"))) == 1


def test_leftovers_of_killed_saves_go(saved: Path) -> None:
    graph, params = everything()
    half = saved.with_name(".net.json.0123456789ab.graphkit.tmp")
    half.write_text("half")
    serialize.save(saved, graph, params)
    assert not half.exists()


def test_unwritable_folder(tmp_path: Path) -> None:
    graph, params = everything()
    with pytest.raises(RuntimeFailure, match="cannot write"):
        serialize.save(tmp_path / "missing" / "net.json", graph, params)


def test_operators_from_outside_round_trip(tmp_path: Path) -> None:
    @op
    class Twice(Op):
        """2 x."""

        domain = "test.outside"
        inputs = ("x",)
        factors: tuple[float, ...] = (1.0, float("inf"))

        def infer(self, x: TensorType) -> TensorType:
            return x

        def reference(self, xp: Any, x: Any) -> Any:
            return x + x

    try:
        x = Value(TensorType("float32", (2,)), "x")
        again = serialize.from_dict(serialize.to_dict(Graph([x], [F.twice(x)])), resolve)
        assert again.nodes[0].op == Twice()
    finally:
        registry.remove(Twice)


def test_what_an_input_claims_to_hold_is_no_constant(tmp_path: Path) -> None:
    x, size = Value(TensorType("float32", (1,)), "x"), Value(TensorType("int64", (1,)), "size")
    path = tmp_path / "net.json"
    serialize.save(path, Graph([x, size], [F.expand(x, size)]), {})
    document = json.loads(path.read_text())
    document["graph"]["inputs"][1]["value"] = [5]
    for output in document["graph"]["nodes"][0]["outputs"]:
        output["shape"] = ["?1"]
    path.write_text(json.dumps(document))
    graph, _, _ = serialize.load(path, resolve)
    assert not graph.outputs[0].tensor.is_static
