"""Single nodes of com.microsoft: graphkit, interpreted and native, compared with ONNX Runtime on the same node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import graphkit as gk
from graphkit.checks.verify import compare_outputs
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.onnx_io.importer import import_model
from graphkit.ops.evaluate import evaluate


class Node:
    """One node as a model. `inputs` are arrays that are fed, None for those left out.

    Every axis whose size is a key of `names` is symbolic, under that name. Operands in `constants` are initialisers.
    """

    def __init__(
        self,
        op: str,
        *inputs: np.ndarray | None,
        outputs: Sequence[bool] = (True,),
        names: dict[int, str] | None = None,
        constants: Sequence[int] = (),
        domain: str = "com.microsoft",
        opset: int = 21,
        **attrs: Any,
    ):
        self.feeds = {f"x{i}": a for i, a in enumerate(inputs) if a is not None and i not in constants}
        fixed = [onnx.numpy_helper.from_array(a, f"x{i}") for i, a in enumerate(inputs) if i in constants]
        names = names or {}
        infos = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(a.dtype), [names.get(size, size) for size in a.shape]
            )
            for name, a in self.feeds.items()
        ]
        wanted = [f"y{i}" if wants else "" for i, wants in enumerate(outputs)]
        given = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
        node = helper.make_node(op, given, wanted, name="node", domain=domain, **attrs)
        untyped = [onnx.ValueInfoProto(name=name) for name in wanted if name]
        graph = helper.make_graph([node], "g", infos, untyped, fixed)
        imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        self.proto = helper.make_model(graph, opset_imports=imports, ir_version=8)

    def reference(self) -> dict[str, Any]:
        return OnnxRuntimeModel(self.proto, threads=1, optimize=False).run(self.feeds)

    def interpreted(self) -> dict[str, Any]:
        found = import_model(self.proto)
        arrays = [found.params[n] if n in found.params else self.feeds[n] for n in found.graph.input_names]
        return dict(zip(found.graph.output_names, evaluate(found.graph, arrays), strict=True))

    def native(self) -> dict[str, Any]:
        return gk.load(self.proto).compile(threads=1).run(self.feeds)


@pytest.fixture
def node() -> type[Node]:
    return Node


@pytest.fixture
def agree(monkeypatch):
    """Whether a node computes what is expected (None: what ONNX Runtime computes), interpreted and natively.

    strict: no step of the native program is interpreted.
    """

    def check(case: Node, expected: Any = None, *, strict: bool = True, rtol=None, atol=None) -> None:
        expected = case.reference() if expected is None else expected
        with monkeypatch.context() as patch:
            patch.setenv("GRAPHKIT_STRICT", "1" if strict else "0")
            for found in (case.interpreted(), case.native()):
                for difference in compare_outputs(found, expected, rtol, atol):
                    assert difference.passed, str(difference)

    return check


@pytest.fixture
def rng(request) -> np.random.Generator:
    """A separate generator for each test, so that other tests do not change its numbers."""
    return np.random.default_rng(sum(request.node.name.encode()))
