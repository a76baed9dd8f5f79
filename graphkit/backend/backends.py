"""A backend, and the parts of a graph that it compiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.errors import BackendError, MissingDependency, UsageError, error_text
from graphkit.executor.run.backend_calls import Source
from graphkit.ir.graph import Graph, Node
from graphkit.signatures import typed_constructor

if TYPE_CHECKING:
    from onnx import ModelProto


class Part:
    """A group of nodes that a backend compiles.

    Attributes:
        name: The name of the group, such as "onnxruntime/0".
        graph: The nodes in topological order. Its inputs with the role "parameter" do not change until the next call of
            `compile`; the others, in this order, are the arguments of the compiled function. Constants are nodes of
            the graph.
        params: The array of each input with the role "parameter", by name (`graph.name_of(value)`).
        threads: Number of CPU threads that the compiled function should use.
    """

    def __init__(self, name: str, graph: Graph, params: Mapping[str, np.ndarray], threads: int):
        self.name, self.graph, self.params, self.threads = name, graph, dict(params), threads

    def to_onnx(self, opset: int | None = None) -> ModelProto:
        """Return the part as an ONNX model. Its inputs are the arguments, in their order.

        Args:
            opset: See `Model.to_onnx`.

        Raises:
            UnsupportedError: A node cannot be expressed in standard operators.
        """
        from graphkit.onnx_io.exporter import export

        return export(self.graph, self.params, opset=opset, name=self.name)

    def __repr__(self) -> str:
        return f"<Part {self.name!r}: {len(self.graph.nodes)} nodes>"


@typed_constructor("gk.backend")
@dataclass(frozen=True, kw_only=True)
class Backend:
    """An engine that computes parts of a graph. `gk.backend.register` makes one and gives it a name.

    Args:
        name: Its name.
        supports: Called with each node (`gk.Node`). It returns True if the backend can compute the node; False, or a
            text that says why not, if it cannot. An empty text means False. `node.op.name` is the operator,
            `node.op.attributes()` are its attributes, and `value.type` is the type of each operand and result in
            `node.inputs` and `node.outputs`.
        compile: Called with a `Part`. It returns a function that takes one array for each operand, and returns the
            result, or a tuple of all results, in the order of `part.graph.outputs`. Dtypes and shapes must be those of
            `part.graph.outputs`. The function must not change or keep its arguments: their memory is used again.
            If the function has a method `write_into(arguments, results)`, this is called instead. It gets two lists of
            arrays and writes to the second one, where None is a result that is not used.
        dynamic: Whether `compile` accepts symbolic sizes, and sizes that depend on data. If not, it is called for each
            set of input shapes, and the latest 16 functions of a group are kept.
        control_flow: Whether If, Loop and Scan may be in a group. `supports` must accept the node and all nodes in it.
        concurrent: Whether several threads may call a compiled function at the same time. If not, calls wait.
        min_nodes: Smallest number of nodes of a group. Constants and views, such as Reshape, do not count.
        min_flops: Smallest number of floating-point operations of a group. Symbolic sizes count as 1.
        fallback: Whether graphkit computes a group, with a BackendWarning, if `compile` raises an exception. By default
            it is a BackendError.
        check: Whether graphkit also computes each group in each run. A result that differs by more than rounding raises
            BackendError.
    """

    name: str
    supports: Callable[[Node], bool | str]
    compile: Callable[[Part], Callable[..., Any]]
    dynamic: bool = False
    control_flow: bool = False
    concurrent: bool = False
    min_nodes: int = 1
    min_flops: int = 0
    fallback: bool = False
    check: bool = False

    def __post_init__(self) -> None:
        if not self.name.strip() or "/" in self.name or not self.name.isprintable():
            raise UsageError(
                "gk.backend: the name of a backend must not be empty or contain '/' or control characters: "
                f"{self.name!r}"
            )
        for option in ("supports", "compile"):
            if not callable(getattr(self, option)):
                raise UsageError(f"backend {self.name!r}: {option} must be a function, not {getattr(self, option)!r}")
        if self.min_nodes < 1 or self.min_flops < 0:
            raise UsageError(
                f"backend {self.name!r}: min_nodes must be at least 1 and min_flops at least 0, not "
                f"{self.min_nodes} and {self.min_flops}"
            )

    def refusal(self, node: Node) -> str | None:
        """Return why the backend does not support a node; None if it does.

        Raises:
            BackendError: `supports` failed, or returned neither a bool nor a text.
            MissingDependency: The package of the backend is not installed.
        """
        try:
            answer = self.supports(node)
        except MissingDependency:
            raise
        except Exception as error:
            raise BackendError(
                f"backend {self.name!r}: supports failed for {node.describe()}: {error_text(error)}"
            ) from error
        reason = ""
        if isinstance(answer, str):
            reason, answer = " ".join(answer.split()), False
        if not isinstance(answer, (bool, np.bool_)):
            raise BackendError(
                f"backend {self.name!r}: supports returned {answer!r} for {node.describe()}; return True, False or a "
                "text that says why not"
            )
        return None if answer else reason or f"it does not support {node.op.name} here"

    def compile_group(self, source: Source) -> Callable[..., Any]:
        """Return the function that `compile` returns for a group."""
        return self.compile(Part(*source))
