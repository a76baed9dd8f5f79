"""The Open Inference Protocol: data types, binary tensors, descriptions, and errors that name the field."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from combinations import in_one_item
from handmade import HEADER, encoded

import graphkit as gk
from graphkit.serving.protocol import Tensor
from graphkit.serving.tensors import DATATYPES, from_json

VALUES = {
    "BOOL": np.array([[True, False]]), "FP16": np.array([[1.5, -65504.0]], np.float16),
    "BF16": np.array([[1.5, -3e38]], ml_dtypes.bfloat16), "FP32": np.array([[0.1, -3e38]], np.float32),
    "FP64": np.array([[0.1, -1e300]]), "BYTES": np.array([["", "üñ€ \0 text"]], object),
    **{
        f"{kind}{bits}": np.array([[np.iinfo(f"{kind.lower()}{bits}").min, np.iinfo(f"{kind.lower()}{bits}").max]],
                                  f"{kind.lower()}{bits}")
        for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)
    },
}  # fmt: skip


@pytest.fixture
def identities(tmp_path: Path) -> list[Path]:
    """Files of models y = x, one for each data type."""
    for name, dtype in DATATYPES.items():
        x = gk.input("x", ["N", 2], dtype=dtype)
        gk.Model({"y": gk.identity(x)}, name=name).save(tmp_path / f"{name}.onnx")
    return [tmp_path / f"{name}.onnx" for name in DATATYPES]


def test_every_datatype_as_binary_and_json(served, identities):
    client = served(identities)
    assert VALUES.keys() == DATATYPES.keys()
    for name, array in VALUES.items():
        wanted = [{"name": "y", "parameters": {"binary_data": True}}]
        body, headers = encoded("x", name, array, outputs=wanted, id="a")
        answer = client.post(f"/v2/models/{name}/infer", content=body, headers=headers)
        assert answer.status_code == 200, answer.text
        length = int(answer.headers[HEADER])
        described = json.loads(answer.content[:length])
        sent = body[int(headers[HEADER]) :]
        assert answer.content[length:] == sent, name
        assert described == {
            "model_name": name, "model_version": "1", "id": "a",
            "outputs": [
                {"name": "y", "datatype": name, "shape": [1, 2], "parameters": {"binary_data_size": len(sent)}},
            ],
        }  # fmt: skip
        values = array.astype(np.float64).tolist() if name == "BF16" else array.tolist()
        tensor = {"name": "x", "datatype": name, "shape": [1, 2], "data": values}
        answer = client.post(f"/v2/models/{name}/infer", json={"inputs": [tensor]})
        assert answer.status_code == 200, answer.text
        (output,) = answer.json()["outputs"]
        assert output == {"name": "y", "datatype": name, "shape": [1, 2], "data": values[0]}


def test_outputs_equal_onnx_runtime(served, tmp_path, ask):
    net = gk.models.build("mlp", inputs=64, classes=10)
    net.save(tmp_path / "mlp.onnx")
    client = served([tmp_path / "mlp.onnx"])
    described = client.get("/v2/models/mlp").json()
    (name,) = (item["name"] for item in described["inputs"])
    x = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    body, headers = encoded(name, "FP32", x, parameters={"binary_data_output": True})
    answer = client.post("/v2/models/mlp/infer", content=body, headers=headers)
    length = int(answer.headers[HEADER])
    (output,) = json.loads(answer.content[:length])["outputs"]
    found = np.frombuffer(answer.content[length:], np.float32).reshape(output["shape"])
    session = onnxruntime.InferenceSession(tmp_path / "mlp.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(found, session.run(None, {name: x})[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("values", ["NaN, -Infinity, 1", '"nan", "-inf", 1.0'])
def test_numbers_that_json_lacks_are_strings(client, values):
    body = f'{{"inputs": [{{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [{values}]}}]}}'
    answer = client.post("/v2/models/scaled/infer", content=body)
    assert answer.json()["outputs"][0]["data"] == ["nan", "-inf", 2.0]


@in_one_item()
@pytest.mark.parametrize(
    ("name", "data", "wanted"),
    [
        ("FP64", [10**20, 1], [1e20, 1.0]),
        ("FP32", [10**20, 0.5], [float(np.float32(1e20)), 0.5]),
        ("FP16", [70000, 1], "70000 is outside of the range of FP16"),
        ("BF16", [1, 1e39], "1e+39 is outside of the range of BF16"),
        ("UINT64", [2**64 - 1, 1], [2**64 - 1, 1]),
        ("INT64", [2**63, 1], "9223372036854775808 is outside of the range of INT64"),
        ("INT32", ["nan", 1], "'nan' is not a number of type INT32"),
        ("BOOL", [1, 0], [True, False]),
        ("BOOL", [True, 1], "1 is not a number of type BOOL"),
        ("BOOL", [1, 2], "2 is outside of the range of BOOL"),
        ("BYTES", [["a", "b"]], ["a", "b"]),
        ("BYTES", [["a"], ["b"]], "the nested lists have the shape [2, 1], but shape is [1, 2]"),
        ("BYTES", ["a", ["b"]], "the nested lists have different lengths"),
    ],
)
def test_elements_of_json_tensors(name, data, wanted):
    try:
        found = from_json(data, DATATYPES[name], (1, 2), "data")
    except gk.errors.InputError as error:
        found = str(error)
        assert isinstance(wanted, str)
        assert f"data: {wanted}" in found
    else:
        assert found.dtype == DATATYPES[name].numpy
        assert found.tolist() == [wanted]


def test_compressed_bodies(client):
    text = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [[1, 2, 3]]}]}).encode()
    for encoding, body in (("gzip", gzip.compress(text)), ("deflate", zlib.compress(text))):
        answer = client.post("/v2/models/scaled/infer", content=body, headers={"Content-Encoding": encoding})
        assert answer.json()["outputs"][0]["data"] == [2.0, 4.0, 6.0]
    for encoding, body in (("gzip", text), ("gzip", gzip.compress(text)[:-9]), ("br", text)):
        answer = client.post("/v2/models/scaled/infer", content=body, headers={"Content-Encoding": encoding})
        assert answer.status_code == 400
        assert encoding in answer.json()["error"]


def test_a_body_that_expands_too_far_is_refused(served, scaled):
    client = served([scaled], max_body=10_000)
    headers = {"Content-Encoding": "gzip"}
    answer = client.post("/v2/models/scaled/infer", content=gzip.compress(bytes(1 << 20)), headers=headers)
    assert answer.status_code == 413


def test_no_rows_is_a_request(client, ask):
    tensor = {"name": "x", "datatype": "FP32", "shape": [0, 3], "data": []}
    answer = client.post("/v2/models/scaled/infer", json={"inputs": [tensor]})
    assert answer.json()["outputs"][0] == {"name": "y", "datatype": "FP32", "shape": [0, 3], "data": []}


GOOD = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "z"}, "inputs[0] ('z'): the model has no such input"),
        ({"name": 3}, "inputs[0].name"),
        ({"datatype": "FP64"}, "inputs[0] ('x').datatype: FP64, but the model needs FP32"),
        ({"datatype": "F" * 300_000}, "inputs[0] ('x').datatype: unknown datatype 'FFF"),
        ({"datatype": "float"}, "inputs[0] ('x').datatype: unknown datatype 'float'"),
        ({"shape": [1, 4]}, "inputs[0] ('x').shape: [1, 4], but the model needs [-1, 3]"),
        ({"shape": [3]}, "inputs[0] ('x').shape"),
        ({"shape": [-1, 3]}, "inputs[0] ('x').shape"),
        ({"shape": [True, 3]}, "inputs[0] ('x').shape"),
        ({"shape": [10**30, 3]}, "inputs[0] ('x').shape: no tensor"),
        ({"shape": [2**62, 3, 0], "data": []}, "inputs[0] ('x').shape: no tensor"),
        ({"shape": [0] * 300_000}, "inputs[0] ('x').shape: a tensor has"),
        ({"name": "z" * 300_000}, "...): the model has no such input"),
        ({"shape": None}, "inputs[0] ('x').shape"),
        ({"data": [1, 2]}, "inputs[0] ('x').data: 2 elements, but the shape [1, 3] has 3"),
        ({"data": [[1, 2], [3]]}, "inputs[0] ('x').data: the nested lists"),
        ({"data": [[1], [2], [3]]}, "inputs[0] ('x').data: the nested lists have the shape [3, 1]"),
        ({"data": [1, 2, None]}, "inputs[0] ('x').data: None is not a number of type FP32"),
        ({"data": ["1", "2", "3"]}, "inputs[0] ('x').data"),
        ({"data": [True, True, False]}, "inputs[0] ('x').data: True is not a number of type FP32"),
        ({"data": [1.0, 2, True]}, "inputs[0] ('x').data: True is not a number of type FP32"),
        ({"data": [1, 2, 10**400]}, "inputs[0] ('x').data: a number is outside of the range of FP32"),
        ({"data": [1, -1e300, 3]}, "inputs[0] ('x').data: -1e+300 is outside of the range of FP32"),
        ({"data": ["a" * 14_000, *[""] * 100_000]}, "100001 elements"),
        ({"shape": [2, 3], "data": ["a" * 14_000, *[""] * 5]}, "'aaa"),
        ({"data": {"a": 1}}, "inputs[0] ('x').data: expected a list"),
        ({"parameters": 3}, "inputs[0].parameters"),
        ({"parameters": {"binary_data_size": 12}}, "inputs[0] ('x'): it has both"),
        ({"parameters": {"shared_memory_region": "a"}}, "inputs[0] ('x').parameters: shared memory"),
    ],
)
def test_malformed_tensors_are_named(client, change, field):
    answer = client.post("/v2/models/scaled/infer", json={"inputs": [GOOD | change]})
    assert answer.status_code == 400
    assert field in answer.json()["error"]
    assert answer.json()["error"].startswith("model 'scaled': ")
    assert len(answer.content) < 400


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"{}", "inputs: expected a list"),
        (b'{"inputs": [1]}', "inputs: expected a list"),
        (b'{"inputs": []}', "there is no tensor for input 'x'"),
        (json.dumps({"inputs": [GOOD, GOOD]}).encode(), "input 'x' is given twice"),
        (json.dumps({"inputs": [GOOD], "id": [0] * 300_000}).encode(), "id: expected a string"),
        (json.dumps({"inputs": [GOOD]}).replace("3]}", "1e400]}").encode(), "inf is outside of the range of FP32"),
        (json.dumps({"inputs": [GOOD], "outputs": [{"name": "z"}]}).encode(), "outputs[0] ('z')"),
        (json.dumps({"inputs": [GOOD], "parameters": {"binary_data_output": 1}}).encode(), "binary_data_output"),
        (
            json.dumps({"inputs": [GOOD], "outputs": [{"name": "y", "parameters": {"classification": 2}}]}).encode(),
            "classification is not supported",
        ),
    ],
)
def test_malformed_bodies_are_named(client, body, message):
    answer = client.post("/v2/models/scaled/infer", content=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]
    assert len(answer.content) < 400


@pytest.mark.parametrize(
    ("size", "data", "length", "message"),
    [
        (12, bytes(11), None, "only 11 follow"),
        (12, bytes(13), None, "1 bytes after"),
        (8, bytes(8), None, "takes 12 bytes"),
        (-1, bytes(12), None, "expected a number of bytes"),
        ("12", bytes(12), None, "expected a number of bytes"),
        (12, bytes(12), "9999", "Inference-Header-Content-Length"),
        (12, bytes(12), "-1", "Inference-Header-Content-Length"),
        (12, bytes(12), "1" * 5000, "Inference-Header-Content-Length"),
        (12, bytes(12), "x", "Inference-Header-Content-Length"),
    ],
)
def test_malformed_binary_tensors_are_named(client, size, data, length, message):
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [tensor]}).encode()
    headers = {HEADER: length or str(len(text))}
    answer = client.post("/v2/models/scaled/infer", content=text + data, headers=headers)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (struct.pack("<I", 1) + b"a", "contain 1 strings"),
        (struct.pack("<I", 1) + b"a" + struct.pack("<I", 9) + b"b", "string 1 ends after"),
        ((struct.pack("<I", 1) + b"a") * 3, "more strings than the 2"),
        (struct.pack("<I", 1) + b"\xff" + struct.pack("<I", 0), "string 0 is not UTF-8"),
        (b"\x00", "string 0 ends after"),
    ],
)
def test_malformed_strings_are_named(served, tmp_path, data, message):
    x = gk.input("x", ["N", 2], dtype=str)
    gk.Model({"y": gk.identity(x)}).save(tmp_path / "texts.onnx")
    tensor = {"name": "x", "datatype": "BYTES", "shape": [1, 2], "parameters": {"binary_data_size": len(data)}}
    text = json.dumps({"inputs": [tensor]}).encode()
    client = served([tmp_path / "texts.onnx"])
    answer = client.post("/v2/models/texts/infer", content=text + data, headers={HEADER: str(len(text))})
    assert answer.status_code == 400
    assert message in answer.json()["error"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 128], "128 is outside"),
        ([1.5], "1.5 is not a number of type INT8"),
        ([2**70], "outside of the range"),
        ([2**64 - 1, -1], "outside of the range of INT8"),
    ],
)
def test_integers_outside_of_their_type_are_named(served, tmp_path, ask, values, message):
    x = gk.input("x", ["N"], dtype="int8")
    gk.Model({"y": gk.identity(x)}).save(tmp_path / "small.onnx")
    status, answer = ask(served([tmp_path / "small.onnx"]), np.array(values, object), "small", "INT8")
    assert status == 400
    assert message in answer["error"]


def test_descriptions(client):
    assert client.get("/v2").json()["name"] == "graphkit"
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get("/v2/models/scaled/ready").json() == {"name": "scaled", "ready": True}
    assert client.get("/v2/models/scaled/versions/1").json() == {
        "name": "scaled", "versions": ["1"], "platform": "graphkit_onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}],
    }  # fmt: skip
    config = client.get("/v2/models/scaled/config").json()
    assert config["max_batch_size"] == 32
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/none", 404),
        ("GET", "/v2/models/scaled/versions/2", 404),
        ("GET", "/v2/models/scaled/versions/-1/ready", 404),
        ("GET", "/v2/models/scaled/versions/" + "1" * 5000, 404),
        ("POST", "/v2/models/none/infer", 404),
        ("POST", "/v2/models/..%2F..%2Fetc%2Fpasswd/infer", 404),
        ("GET", "/nothing", 404),
        ("DELETE", "/v2/models/scaled", 405),
        ("GET", "/v2/models/scaled/infer", 405),
    ],
)
def test_unknown_paths_have_json_errors(client, method, path, status):
    answer = client.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]


def test_values_that_a_model_refuses_are_an_error_of_the_client(served, tmp_path, ask):
    x = gk.input("x", ["N"], dtype="int64")
    gk.Model({"y": gk.gather(gk.constant(np.arange(4.0)), x)}).save(tmp_path / "table.onnx")
    client = served([tmp_path / "table.onnx"])
    status, answer = ask(client, np.array([1, 9]), "table", "INT64")
    assert status == 400
    assert all(text in answer["error"] for text in ("model 'table': ", "these values of 'x'", "index 9", "4 elements"))
    assert ask(client, np.array([1, 2]), "table", "INT64")[0] == 200


def test_unknown_rank_is_no_shape():
    assert Tensor("x", gk.DType.FLOAT32, None).description() == {"name": "x", "datatype": "FP32", "shape": None}


def test_statistics_and_metrics_count_requests(client, ask):
    for _ in range(3):
        ask(client, np.ones((2, 3)))
    ask(client, np.ones((2, 4)))
    (found,) = client.get("/v2/models/scaled/stats").json()["model_stats"]
    assert (found["inference_count"], found["execution_count"]) == (6, 3)
    assert found["inference_stats"]["success"]["count"] == 3
    assert found["inference_stats"]["fail"]["count"] == 1
    assert found["inference_stats"]["compute_infer"]["ns"] > 0
    assert [(b["batch_size"], b["compute_infer"]["count"]) for b in found["batch_stats"]] == [(2, 3)]
    assert client.get("/v2/models/stats").json()["model_stats"] == [found]
    text = client.get("/metrics").text
    label = 'model="scaled",outcome="answered",version="1"'
    assert f"graphkit_inference_requests_total{{{label}}} 3.0" in text
    assert 'graphkit_batch_rows_bucket{le="2.0",model="scaled",version="1"} 3.0' in text
    assert 'graphkit_http_responses_total{status="400"} 1.0' in text


def test_models_that_the_protocol_cannot_describe_are_refused(served, tmp_path):
    s = gk.input("s", gk.SequenceType(gk.TensorType("float32", [3])))
    gk.Model({"y": gk.sequence_at(s, gk.constant(np.int64(0)))}).save(tmp_path / "net.onnx")
    with pytest.raises(gk.errors.UnsupportedError, match="input 's' is sequence"):
        served([tmp_path / "net.onnx"])


def test_lists_of_maps_are_a_matrix(served, tmp_path, ask):
    x = gk.input("x", ["N", 3])
    gk.Model({"y": gk.zip_map(x, classlabels_int64s=[6, 5, 7])}).save(tmp_path / "maps.onnx")
    client = served([tmp_path / "maps.onnx"])
    status, answer = ask(client, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "maps")
    assert status == 200, answer
    assert answer["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [2, 3], "data": [2, 1, 3, 5, 4, 6]}]
    assert client.get("/v2/models/maps").json()["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [-1, -1], "parameters": {"keys": [5, 6, 7]}},
    ]  # fmt: skip


def test_long_ids_are_shortened_in_the_log(client, caplog):
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
    with caplog.at_level("INFO", "graphkit.serve"):
        answer = client.post("/v2/models/scaled/infer", json={"id": "r" * 5000, "inputs": [tensor]})
    assert answer.json()["id"] == "r" * 5000
    (line,) = (vars(record) for record in caplog.records if record.getMessage() == "request")
    assert line["id"] == "r" * 200
