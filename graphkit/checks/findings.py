"""The result of `gk.bisect`: the first node where two sides differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from graphkit.checks.comparison import OutputReport
from graphkit.checks.noise import ENGINES
from graphkit.errors import CheckFailed
from graphkit.text import listed, quantity, short_repr

# Kinds of a divergence, and what each means.
KINDS: Mapping[str, str] = {
    "node": "given equal inputs, this node returns different results",
    "path": "this node agrees given equal inputs, but the error that grew on the way to it is larger than rounding "
    "explains",
    "amplified": "this node agrees given equal inputs, but it turns differences within rounding into different values",
    "segment": "the nodes differ only if they run together: this node alone agrees, or the fault disappears when the "
    "values between them are observed",
}


@dataclass(frozen=True)
class ValueDifference:
    """Difference of one value between the two sides.

    `name` and `other_name` are its names; `dtype`, `other_dtype` and `shape` describe it. `nan` and `infinite` are the
    numbers of such elements, as pairs: on the first side, on the second one.
    """

    name: str
    other_name: str
    dtype: str
    other_dtype: str
    shape: tuple[int, ...]
    max_abs: float
    max_rel: float
    nan: tuple[int, int] = (0, 0)
    infinite: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        types = self.dtype if self.dtype == self.other_dtype else f"{self.dtype} and {self.other_dtype}"
        line = f"{self.name} {types}{list(self.shape)}: max {self.max_abs:.3g} rel {self.max_rel:.3g}"
        for what, (ours, theirs) in (("NaN", self.nan), ("infinite", self.infinite)):
            if ours != theirs:
                line += f", {ours} and {theirs} {what}"
        return line


@dataclass(frozen=True)
class Divergence:
    """The first node where two sides differ beyond measured noise.

    Attributes:
        kind: "node": given equal inputs, the node returns different results. "path": it agrees given equal inputs, but
            the error on the way to it grew beyond rounding. "amplified": it agrees given equal inputs, but turns
            differences within rounding into different values, as ArgMax does. "segment": the node alone agrees, or the
            fault disappears when the values between the nodes are observed, for example because it is in a fused
            kernel; `nodes` is the smallest group of nodes that shows it.
        node: Name of the node on the first side.
        operator: Its operator.
        other_node: Name of the node on the second side.
        other_operator: Its operator.
        inputs: Differences of its inputs.
        outputs: Differences of its outputs.
        isolated: Comparison of its outputs if both sides get the inputs of the first side.
        nodes: Names of the nodes that differ together, in topological order. For "node", usually one.
        parameters: Its parameters and constants that differ, as texts.
        one_sided: A sentence if NaN or infinity appears on one side only, else "".
        inside: The node of a branch of an If that differs first, else "".
        reason: Why it is beyond measured noise.
    """

    kind: str
    node: str
    operator: str
    other_node: str
    other_operator: str
    inputs: tuple[ValueDifference, ...]
    outputs: tuple[ValueDifference, ...]
    isolated: tuple[OutputReport, ...]
    nodes: tuple[str, ...]
    parameters: tuple[str, ...] = ()
    one_sided: str = ""
    inside: str = ""
    reason: str = ""

    def lines(self) -> Iterator[str]:
        """Yield a description, line by line."""
        other = "" if self.other_operator == self.operator else f", {self.other_operator} on the other side"
        yield f"node {self.node!r} ({self.operator}{other})"
        yield from (f"  input {item}" for item in self.inputs)
        yield from (f"  output {item}" for item in self.outputs)
        yield from (f"  {text}" for text in self.explanation())

    def explanation(self) -> Iterator[str]:
        """Yield sentences: what kind of divergence this is, and the evidence."""
        yield KINDS[self.kind]
        if len(self.nodes) > 1:
            yield f"smallest group of nodes that differs: {listed(self.nodes, len(self.nodes), 8)}"
        for item in self.isolated:
            told = f", {item.verdict}" + (f": {item.reason}" if item.reason else "")
            yield f"output {item.name} given equal inputs: max {item.max_abs:.3g} rel {item.max_rel:.3g}{told}"
        yield from (text for text in (*self.parameters, self.one_sided, self.inside) if text)
        if self.reason and all(item.reason != self.reason for item in self.isolated):
            yield self.reason

    def __str__(self) -> str:
        return "\n".join(self.lines())


@dataclass(frozen=True)
class Bisection:
    """Result of `gk.bisect`. `passed` is true if values were compared and no node diverges.

    `found` is the first divergence, or None. `compared` counts the values that were compared, `unmatched` the results
    of nodes of the first side that have no counterpart. `files` are the files that were written, `command` the command
    that shows the fault with them.
    """

    found: Divergence | None
    compared: int
    unmatched: int
    sides: tuple[str, str] = ENGINES
    guesses: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    command: str = ""

    @property
    def passed(self) -> bool:
        return self.verdict == "PASSED"

    @property
    def verdict(self) -> str:
        """The verdict: "PASSED", "FAILED", or "NOT TESTED" if no value has an element that could be compared."""
        return "FAILED" if self.found is not None else "PASSED" if self.compared else "NOT TESTED"

    def raise_if_failed(self) -> None:
        """Raise CheckFailed if a node diverges, or if nothing was compared."""
        if self.found is not None:
            raise CheckFailed(f"{self.sides[0]} and {self.sides[1]} differ: {self.found}")
        if not self.compared:
            raise CheckFailed("no value was compared; give inputs for which the values have elements that are not NaN")

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain data, for JSON."""
        return {"passed": self.passed, "verdict": self.verdict, **asdict(self)}

    def __repr__(self) -> str:
        return short_repr(self, lambda: [self.verdict, quantity(self.compared, "value")])

    def __str__(self) -> str:
        found = [] if self.found is None else [str(self.found)]
        return "\n".join([*self.notes, *found, f"{quantity(self.compared, 'value')} compared: {self.verdict}"])
