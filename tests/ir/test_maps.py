"""Maps: as types, in JSON and ONNX, as feeds and results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.checks import backend
from graphkit.checks.inputs import make_feeds
from graphkit.checks.maps import as_table, flattened
from graphkit.checks.verify import compare_outputs
from graphkit.errors import InputError, InvalidModel, TypeMismatch
from graphkit.ir.graph import Graph, Value
from graphkit.ir.serialize import from_dict, to_dict
from graphkit.ir.types import DType, MapType, OptionalType, SequenceType, TensorType, join
from graphkit.onnx_io.tensors import claims, type_from_proto, type_to_proto
from graphkit.ops import F, registry

FLOATS = MapType(DType.INT64, TensorType("float32", ()))
TEXTS = MapType(DType.STRING, TensorType("string", ()))


def vectorizer(words: list[str], dtype: str = "float32") -> gk.Model:
    x = Value(MapType(DType.STRING, TensorType(dtype, ())), "features")
    return gk.Model({"row": F.dict_vectorizer(x, string_vocabulary=words)}, name="vectorizer")


def test_types() -> None:
    assert FLOATS not in (TEXTS, SequenceType(FLOATS))
    assert len({FLOATS, TEXTS, MapType(DType.INT64, TensorType("float32", ()))}) == 2
    assert str(SequenceType(FLOATS)) == "sequence(map(int64, float32[]))"
    with pytest.raises(TypeMismatch, match="keys of a map"):
        MapType(DType.FLOAT32, TensorType("float32", ()))
    assert join(FLOATS, FLOATS) == FLOATS
    with pytest.raises(TypeMismatch, match="cannot be joined"):
        join(FLOATS, TEXTS)


@in_one_item()
@pytest.mark.parametrize("kind", [FLOATS, TEXTS, SequenceType(FLOATS), OptionalType(SequenceType(TEXTS))])
def test_protobuf_and_json(kind: Any) -> None:
    assert type_from_proto(type_to_proto(kind), "here") == kind
    y = Value(TensorType("float32", (2,)), "y")
    graph = Graph([Value(kind, "x"), y], [F.relu(y)])
    again = from_dict(json.loads(json.dumps(to_dict(graph))), registry.get)
    assert again.inputs[0].type == kind
    assert str(again) == str(graph)


def test_other_keys_are_another_type() -> None:
    other = MapType(DType.STRING, TensorType("float32", ()))
    assert claims(FLOATS, FLOATS)
    assert not claims(SequenceType(other), SequenceType(FLOATS))
    proto = type_to_proto(FLOATS)
    proto.map_type.key_type = onnx.TensorProto.FLOAT
    with pytest.raises(InvalidModel, match="here: the keys of a map"):
        type_from_proto(proto, "here")
    proto = type_to_proto(FLOATS)
    proto.map_type.ClearField("value_type")
    with pytest.raises(InvalidModel, match="a map without a type"):
        type_from_proto(proto, "here")
    x = gk.input("x", [2, 1])
    record = to_dict(Graph([x], [F.zip_map(x, classlabels_int64s=[3])]))
    record["nodes"][0]["outputs"][0]["sequence"]["map"]["key"] = "string"
    with pytest.raises(InvalidModel, match="stored type"):
        from_dict(record, registry.get)


def test_feeds_and_results() -> None:
    net = vectorizer(["a", "b"])
    for given in ({"b": np.float32(2.5)}, {"b": 2.5, "other": 1}):
        assert net.run({"features": given})["row"].tolist() == [[0, 2.5]]
    assert net.run({"features": {}})["row"].tolist() == [[0, 0]]
    for wrong in ([1.0], {1: 2.0}, {"a": "text"}, {"a": [1.0, 2.0]}):
        with pytest.raises(InputError, match="features"):
            net.run({"features": wrong})
    filled = make_feeds(net).arrays["features"]
    assert filled.keys() == {"a"}


def test_a_file_with_maps_in_onnx_runtime(tmp_path: Path) -> None:
    x = gk.input("x", ["n", 2])
    net = gk.Model({"maps": F.zip_map(F.softmax(x), classlabels_strings=["no", "yes"])}, name="zipped")
    report = gk.verify(net)
    assert report.passed
    assert [output.name for output in report.outputs] == ["maps (keys)", "maps"]
    net.save(tmp_path / "zipped.json")
    given = {"x": np.array([[0, 0], [0, 50]], np.float32)}
    results = gk.load(tmp_path / "zipped.json").compile().run(given)["maps"]
    assert results == [{"no": 0.5, "yes": 0.5}, {"no": pytest.approx(0, abs=1e-6), "yes": 1.0}]
    assert gk.verify(vectorizer(["a", "b"])).passed
    (row,) = backend.prepare(vectorizer(["a", "b"]).to_onnx()).run([{"a": np.float32(4)}])
    assert row.tolist() == [[4, 0]]


def test_maps_that_differ_are_told() -> None:
    ours: list[dict[Any, float]] = [{1: 0.5, 2: 0.25}, {1: 1.5, 2: 1.25}]
    assert all(r.passed for r in compare_outputs({"m": ours}, {"m": [dict(reversed(m.items())) for m in ours]}))
    for theirs in ([{1: 0.5, 2: 0.25}, {1: 1.5, 2: 7.0}], [{1: 0.5, 3: 0.25}, {1: 1.5, 3: 1.25}], ours[:1]):
        assert not all(r.passed for r in compare_outputs({"m": ours}, {"m": theirs}))
    mixed: list[dict[Any, float]] = [{1: 0.5}, {2: 0.5}]
    assert not all(r.passed for r in compare_outputs({"m": mixed}, {"m": [{1: 0.5}, {2: 0.75}]}))


def test_as_arrays() -> None:
    table = as_table([{"b": 2.0, "a": 1.0}, {"a": 3.0, "b": 4.0}])
    assert table is not None
    assert table.keys.tolist() == ["a", "b"]
    assert table.values.dtype == np.float32
    assert table.values.tolist() == [[1, 2], [3, 4]]
    assert as_table([{"a": 1.0}, {"b": 1.0}]) is None
    assert as_table([]) is None
    flat = flattened({"y": np.zeros(2), "m": {5: 1.0}, "s": [{1: 0.1}, {2: 0.1}]})
    assert list(flat) == ["y", "m.keys", "m.values", "s[0].keys", "s[0].values", "s[1].keys", "s[1].values"]
    assert flat["m.keys"].tolist() == [5]


@in_one_item()
@pytest.mark.parametrize("target", [13, 17, 21, 25])
def test_versions_that_are_exported(target: int) -> None:
    """The version of the domain is the one of the target, and one that still has the operators of the file."""
    x = gk.input("x", ["n", 1])
    stump: dict[str, Any] = {
        "nodes_treeids": [0], "nodes_nodeids": [0], "nodes_featureids": [0], "nodes_modes": ["LEAF"],
        "nodes_values": [0.0], "nodes_truenodeids": [0], "nodes_falsenodeids": [0], "target_treeids": [0],
        "target_nodeids": [0], "target_ids": [0],
    }  # fmt: skip
    regressor = F.tree_ensemble_regressor(x, **stump, target_weights_as_tensor=np.float32([2.5]))
    net = gk.Model({"y": F.scaler(regressor, offset=[1.0], scale=[2.0])})
    versions = {entry.domain: entry.version for entry in net.to_onnx(opset=target).opset_import}
    assert versions == {"": target, "ai.onnx.ml": {13: 2, 17: 3, 21: 4, 25: 4}[target]}
    assert gk.verify(net, opset=target).passed
    wide = F.tree_ensemble_regressor(x, **stump, target_weights_as_tensor=np.float64([2.5]))
    if target < 16:
        with pytest.raises(gk.errors.UnsupportedError, match="target_weights_as_tensor of float64"):
            gk.Model({"y": wide}).to_onnx(opset=target)
    newest = F.tree_ensemble(
        x, tree_roots=[0], nodes_featureids=[0], nodes_modes=np.uint8([0]), nodes_splits=np.float32([0]),
        nodes_truenodeids=[0], nodes_trueleafs=[1], nodes_falsenodeids=[1], nodes_falseleafs=[1], leaf_targetids=[0, 0],
        leaf_weights=np.float32([3.5, 4.5]),
    )  # fmt: skip
    if target >= 21:
        assert gk.verify(gk.Model({"y": newest}), opset=target).passed
        with pytest.raises(gk.errors.UnsupportedError, match="has both TreeEnsemble and TreeEnsembleRegressor"):
            gk.Model({"y": newest + regressor}).to_onnx(opset=target)
    else:
        with pytest.raises(gk.errors.UnsupportedError, match="TreeEnsemble"):
            gk.Model({"y": newest}).to_onnx(opset=target)
