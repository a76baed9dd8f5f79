"""The workloads of the inference benchmark: a network, its options and a batch size each, as files made on demand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from builder import Feed
from cost import Cost, cost
from networks import NETWORKS

_SOURCES = ("builder.py", "networks.py", "cost.py")
# A model with a symbolic batch has no cost of its own.
SYMBOLIC = "N"


@dataclass(frozen=True)
class Workload:
    """`name` is for the command line, `title` for tables; `options` are those of the network."""

    name: str
    title: str
    network: str
    batch: int
    options: Mapping[str, Any] = field(default_factory=dict)


WORKLOADS: dict[str, Workload] = {
    w.name: w
    for w in (
        Workload("mlp-1", "mlp 784-512-512-10, batch 1", "mlp", 1),
        Workload("mlp-64", "mlp 784-512-512-10, batch 64", "mlp", 64),
        Workload("lenet-64", "lenet 28x28, batch 64", "lenet", 64),
        Workload("pointwise", "pointwise chain, 4M floats", "pointwise", 1),
        Workload("mobilenetv2-1", "mobilenetv2, batch 1", "mobilenetv2", 1),
        Workload("resnet18-1", "resnet18, batch 1", "resnet", 1, {"layers": 18}),
        Workload("resnet50-1", "resnet50, batch 1", "resnet", 1, {"layers": 50}),
        Workload("resnet50-16", "resnet50, batch 16", "resnet", 16, {"layers": 50}),
        Workload("bert-1", "bert-base, 128 tokens, batch 1", "bert", 1),
        Workload("transformer-8", "causal transformer 4x256, 8x128 tokens", "transformer", 8),
        Workload("lstm-1", "lstm 2x256, 35 steps, batch 1", "lstm", 1),
        Workload("lstm-20", "lstm 2x256, 35 steps, batch 20", "lstm", 20),
    )
}


@dataclass(frozen=True)
class ModelFile:
    """A written model: its path, how to fill its inputs, and what it must do at least (None for a symbolic batch)."""

    path: str
    feeds: tuple[Feed, ...]
    cost: Cost | None

    def arrays(self, batch: int, seed: int = 0) -> dict[str, np.ndarray]:
        random = np.random.default_rng(seed)
        return {feed.name: feed.fill(batch, random) for feed in self.feeds}


def model_file(workload: Workload, folder: Path, *, symbolic: bool = False) -> ModelFile:
    """Return the ONNX file of a workload in `folder`. It is written if it is missing or older than this code."""
    batch = SYMBOLIC if symbolic else workload.batch
    options = "".join(f"-{value}" for value in workload.options.values())
    path = folder / f"{workload.network}{options}-{batch}.onnx"
    facts = path.with_suffix(".json")
    version = _version()
    if path.exists() and facts.exists():
        known = json.loads(facts.read_text())
        if known["version"] == version:
            feeds = tuple(Feed(f["name"], tuple(f["shape"]), f["below"]) for f in known["feeds"])
            return ModelFile(str(path), feeds, known["cost"] and Cost(**known["cost"]))
    folder.mkdir(parents=True, exist_ok=True)
    model, feeds_list = NETWORKS[workload.network](batch, **workload.options)
    counted = None if symbolic else cost(model)
    # The facts are written last: without them the model is made again.
    facts.unlink(missing_ok=True)
    path.write_bytes(model.SerializeToString())
    plain = {"version": version, "feeds": [asdict(f) for f in feeds_list], "cost": counted and asdict(counted)}
    facts.write_text(json.dumps(plain, indent=1))
    return ModelFile(str(path), tuple(feeds_list), counted)


def _version() -> str:
    """A digest of the code that makes the files."""
    here = Path(__file__).parent
    return hashlib.sha256(b"".join((here / name).read_bytes() for name in _SOURCES)).hexdigest()[:16]
