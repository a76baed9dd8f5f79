"""The benchmark's networks: they are valid ONNX, have the right cost, and equal their PyTorch modules."""

from __future__ import annotations

import hashlib

import numpy as np
import onnx
import onnxruntime
import pytest
from combinations import in_one_item
from cost import Cost, cost
from networks import NETWORKS
from workloads import WORKLOADS, Workload, model_file

# Options that make the large networks small.
SMALL = {
    "mlp": {},
    "lenet": {},
    "pointwise": {"length": 1000},
    "resnet": {"layers": 18},
    "mobilenetv2": {},
    "bert": {"layers": 1, "width": 128, "vocabulary": 50},
    "transformer": {"layers": 1, "width": 64, "vocabulary": 50},
    "lstm": {"layers": 2, "width": 16, "vocabulary": 50},
}


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)


def test_every_network_is_here() -> None:
    assert set(SMALL) == set(NETWORKS) == {w.network for w in WORKLOADS.values()}


def digest(model: onnx.ModelProto) -> str:
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()


@pytest.mark.full
@in_one_item()
@pytest.mark.parametrize("network", SMALL)
def test_valid_and_the_same_every_time(network: str) -> None:
    model, feeds = NETWORKS[network](2, **SMALL[network])
    onnx.checker.check_model(model, full_check=True)
    assert digest(model) == digest(NETWORKS[network](2, **SMALL[network])[0])
    outputs = run(model, {f.name: f.fill(2, np.random.default_rng(0)) for f in feeds})
    declared = [[d.dim_value for d in o.type.tensor_type.shape.dim] for o in model.graph.output]
    assert [list(o.shape) for o in outputs] == declared
    assert all(np.isfinite(o).all() and 0.05 < o.std() < 50 for o in outputs), "activations stay in range"


@pytest.mark.full
@in_one_item()
@pytest.mark.parametrize("network", sorted(set(SMALL) - {"lstm"}))
def test_a_symbolic_batch(network: str) -> None:
    model, feeds = NETWORKS[network]("N", **SMALL[network])
    outputs = run(model, {f.name: f.fill(3, np.random.default_rng(0)) for f in feeds})
    assert {o.shape[0] for o in outputs} == {3}


def test_a_symbolic_batch_of_the_lstm_is_refused() -> None:
    with pytest.raises(ValueError, match="fixed batch"):
        NETWORKS["lstm"]("N")


@pytest.mark.parametrize("network", SMALL)
@pytest.mark.pytorch
def test_pytorch_computes_the_same(network: str, tmp_path) -> None:
    torch = pytest.importorskip("torch")
    import torch_models

    options = SMALL[network]
    model, feeds = NETWORKS[network](2, **options)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    arrays = {f.name: f.fill(2, np.random.default_rng(0)) for f in feeds}
    module = torch_models.load(
        network, {k: v for k, v in options.items() if k != "length"}, str(tmp_path / "model.onnx")
    )
    with torch.inference_mode():
        result = module(*(torch.from_numpy(a) for a in arrays.values()))
    results = [result] if isinstance(result, torch.Tensor) else result
    for ours, theirs in zip(results, run(model, arrays), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-4, atol=2e-5)


def test_cost_of_linear_layers() -> None:
    weights = 784 * 512 + 512 * 512 + 512 * 10
    model, _ = NETWORKS["mlp"](3)
    assert cost(model) == Cost(2 * 3 * weights, 4 * (weights + 512 + 512 + 10 + 3 * 784 + 3 * 10))


@pytest.mark.full
def test_cost_of_convolutions_is_the_published_one() -> None:
    """Multiply-adds: 1.81 and 0.30 thousand million (torchvision's GFLOPS of its models)."""
    assert cost(NETWORKS["resnet"](1, layers=18)[0]).flops / 2e9 == pytest.approx(1.81, abs=0.01)
    assert cost(NETWORKS["mobilenetv2"](1)[0]).flops / 2e9 == pytest.approx(0.30, abs=0.005)


def test_cost_of_lstm_and_gathered_rows() -> None:
    model, _ = NETWORKS["lstm"](1, steps=3, layers=1, width=16, vocabulary=1000)
    flops, moved = cost(model).flops, cost(model).bytes
    assert flops == 2 * 3 * (8 * 16 * 16 + 16 * 1000)
    # ids, three gathered rows, W, R, bias, states, axes of the Reshape, decoder, logits
    rows, cell, decoder = 3 * 16, 8 * 16 * 16 + 8 * 16 + 16, 16 * 1000 + 1000
    assert moved == 8 * 3 + 4 * (rows + cell + decoder + 3 * 1000) + 8 * 3


def test_files_are_made_once_and_again_when_the_code_changed(tmp_path, monkeypatch) -> None:
    workload = Workload("m", "m", "mlp", 2)
    first = model_file(workload, tmp_path)
    assert model_file(workload, tmp_path) == first
    assert {n: a.shape for n, a in first.arrays(2).items()} == {"x": (2, 784)}
    monkeypatch.setattr("workloads.NETWORKS", {"mlp": lambda batch: pytest.fail("made again")})
    assert model_file(workload, tmp_path) == first
    monkeypatch.setattr("workloads._version", lambda: "other")
    with pytest.raises(pytest.fail.Exception, match="made again"):
        model_file(workload, tmp_path)
