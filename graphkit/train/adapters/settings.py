"""The settings of LoRA, and their form in metadata and in option texts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from graphkit.errors import InvalidModel, UsageError, did_you_mean
from graphkit.ir.graph import Graph
from graphkit.ir.origin import titled
from graphkit.signatures import typed_constructor
from graphkit.train.adapter_marks import LORA, has_adapters
from graphkit.train.arguments import BELOW_ONE, POSITIVE, convert_fields


@typed_constructor("gk.settings")
@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adaptation: a layer y = W x becomes y = W x + scaling * B A x, and only A and B are trained.

    A is [rank, inputs] and B is [outputs, rank]. B starts at 0, so the model computes the same function at first. See
    Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021.

    Args:
        rank: The number of rows of A and of columns of B.
        alpha: The scaling is alpha / rank.
        layers: Names of layers or glob patterns: the layers that get adapters (default: all MatMul, Gemm and Conv with
            weights). You can also give the name of a layer's node, or of its weight.
        dropout: Probability that the adapter's input is set to 0 in training.
        dora: Also train the length of each row of the weight (Liu et al., "DoRA: Weight-Decomposed Low-Rank
            Adaptation", 2024).
        rslora: Make the scaling alpha / sqrt(rank) (Kalajdzievski, "A Rank Stabilization Scaling Factor for
            Fine-Tuning with LoRA", 2023).
    """

    rank: int = 8
    alpha: float = 16.0
    layers: str | Sequence[str] = "*"
    dropout: float = 0.0
    dora: bool = False
    rslora: bool = False

    def __post_init__(self) -> None:
        convert_fields(self, "Lora", {"alpha": POSITIVE, "dropout": BELOW_ONE})
        layers = (self.layers,) if isinstance(self.layers, str) else tuple(self.layers)
        if not layers:
            raise UsageError("Lora: layers is empty; give names or glob patterns of layers")
        object.__setattr__(self, "layers", layers)

    @property
    def scaling(self) -> float:
        """The factor on B A."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def to_text(self) -> str:
        """Return the settings as a JSON object, for metadata."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Lora:
        """Parse the result of `to_text`. Raises InvalidModel for other texts."""
        try:
            found = json.loads(text)
            return cls(**{field.name: found[field.name] for field in fields(cls)})
        except (ValueError, TypeError, KeyError, OverflowError, UsageError, RecursionError) as error:
            raise InvalidModel(f"the metadata {LORA!r} of the model are damaged: {error}") from None


def check_differentiable(graph: Graph) -> None:
    """Raise UsageError if a model with DoRA has no StopGradient: its gradients would be wrong.

    A model loses StopGradient when it is written to an .onnx file.
    """
    if has_adapters(graph) and Lora.from_text(graph.meta[LORA]).dora and "StopGradient" not in graph.operators:
        raise UsageError(
            f"{titled(graph, 'model')} has DoRA adapters and was read from an .onnx file, which does not say where "
            "gradients stop. To train it, read the .json file, or load the adapters again (gk.load_adapter)"
        )


_BOOLEANS = {"true": True, "false": False}


def from_options(given: Mapping[str, str], layers: Sequence[str], option: str, layers_option: str) -> Lora | None:
    if not given:
        if layers:
            raise UsageError(f"{layers_option} selects the layers of {option}: also give {option} rank=8")
        return None
    known = {field.name: str(field.type) for field in fields(Lora) if field.name != "layers"}
    values: dict[str, Any] = {"layers": tuple(layers)} if layers else {}
    for name, text in given.items():
        if name not in known:
            raise UsageError(f"{option} {name}={text}: there is no setting {name!r}{did_you_mean(name, known)}")
        try:
            values[name] = _BOOLEANS[text] if known[name] == "bool" else {"int": int, "float": float}[known[name]](text)
        except (KeyError, ValueError):
            form = {"bool": "true or false", "int": "an integer", "float": "a number"}[known[name]]
            raise UsageError(f"{option} {name}={text}: expected {form}") from None
    return Lora(**values)
