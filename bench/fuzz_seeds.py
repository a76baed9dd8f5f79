"""Original files for the fuzzer: models of one operator, small networks, files of other programs, ONNX's test models.

There is one model for each sample of each operator, so the number of a seed changes when operators are added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

import graphkit as gk
from graphkit import errors
from graphkit.checks.samples import make_case, samples_of
from graphkit.data.files.npz import read_arrays
from graphkit.ops import registry

CORPUS = Path(__file__).parents[1] / "tests" / "corpus"

# Bytes: of ONNX's test models, a larger one takes longer than it finds.
_LARGEST = 20_000


class Seed(NamedTuple):
    """A model file, and inputs for it where random ones would not do. Other files that it names lie in CORPUS."""

    name: str
    data: bytes
    inputs: Mapping[str, np.ndarray] = {}


def _operators(only: tuple[str, ...] = ()) -> Iterator[Seed]:
    for cls in registry:
        if not only or cls.name in only:
            for number in range(len(samples_of(cls))):
                yield from _exported(f"{cls.name}-{number}", lambda cls=cls, number=number: _of_case(cls, number))


def _of_case(cls: Any, number: int) -> gk.Model:
    case = make_case(cls, number)
    return gk.Model.from_graph(case.graph(all_inputs=bool(number % 2)), {})


def _exported(name: str, build: Callable[[], gk.Model]) -> Iterator[Seed]:
    try:
        model = build().to_onnx(opset=24)
    except errors.GraphkitError:  # what ONNX has no word for
        return
    yield Seed(name, bytes(model.SerializeToString()))


_NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"inputs": 4, "hidden": 3, "classes": 2},
    "lenet": {},
}


def _networks() -> Iterator[Seed]:
    for name, options in _NETWORKS.items():
        yield from _exported(name, lambda name=name, options=options: gk.models.build(name, **options))


def _corpus() -> Iterator[Seed]:
    for path in sorted(CORPUS.glob("*.onnx")):
        arrays = path.with_suffix(".npz")
        yield Seed(path.stem, path.read_bytes(), read_arrays(arrays) if arrays.exists() else {})


def _standard() -> Iterator[Seed]:
    """The models of ONNX's backend tests that come with the onnx package."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for path in sorted(folder.glob("*/*/model.onnx")):
        if path.stat().st_size <= _LARGEST:
            yield Seed(f"{path.parents[1].name}/{path.parent.name}", path.read_bytes())


# By name, what makes them and how often one is taken, among those that are asked for.
KINDS: dict[str, tuple[Callable[[], Iterator[Seed]], int]] = {
    "operators": (_operators, 8),
    "networks": (_networks, 1),
    "corpus": (_corpus, 6),
    "standard": (_standard, 2),
}


@cache
def seeds(kind: str, only: tuple[str, ...] = ()) -> tuple[Seed, ...]:
    """Return the seeds of a kind; for operators, of `only` these."""
    return tuple(_operators(only)) if kind == "operators" and only else tuple(KINDS[kind][0]())
