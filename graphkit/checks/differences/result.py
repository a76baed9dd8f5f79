"""The result of comparing two models: what differs, as plain data, as tables, and in one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from graphkit.checks.comparison import OutputReport
from graphkit.checks.differences.arrays import ArrayDifference
from graphkit.errors import CheckFailed
from graphkit.named_tuples import NamedTuple
from graphkit.text import format_table, quantity, short_repr

# How many rows of a table `str` shows.
_ROWS = 20
# Longest text of a table's cell.
_WIDEST = 80


@dataclass(frozen=True)
class Difference:
    """One property with other values in both models; None where a model does not have it."""

    what: str
    a: str | None
    b: str | None


@dataclass(frozen=True)
class InterfaceDifference:
    """An input or output of the models that differs; None if a model does not have it.

    value_a, value_b: for an output, the values that it is, if they do not correspond to each other.
    """

    name_a: str | None
    name_b: str | None
    type_a: str | None
    type_b: str | None
    value_a: str | None = None
    value_b: str | None = None

    @property
    def is_different(self) -> bool:
        """Whether name, type or value differ."""
        return self.name_a != self.name_b or self.type_a != self.type_b or self.value_a is not None


@dataclass(frozen=True)
class NodeEntry:
    """A node that only one model has. inputs: names of its operands; a constant is shown by its type and elements."""

    name: str
    operator: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class NodeDifference:
    """Two corresponding nodes that differ in operator, attributes or operands.

    Names of nodes in a subgraph begin with the node that has the subgraph, and the attribute: `loop.body/add`.
    """

    name_a: str
    name_b: str
    operator: str
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class WeightDifference:
    """A parameter, state or large floating-point constant that differs; None if a model does not have it.

    type_a, type_b: role, element type and shape, such as `parameter float32[10, 5]`. elements: how the elements differ,
    if both models have it with one element type and shape.
    """

    name_a: str | None
    name_b: str | None
    type_a: str | None
    type_b: str | None
    elements: ArrayDifference | None = None


@dataclass(frozen=True)
class Behaviour:
    """Outputs of both models on the same inputs; in each report, B is compared with A as the reference.

    guesses: sizes that were chosen for unknown dimensions. reason: why the models could not be run on the same inputs.
    """

    outputs: tuple[OutputReport, ...]
    guesses: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""

    @property
    def verdict(self) -> str:
        """The verdict: "PASSED", "FAILED", or "NOT TESTED" if there was nothing to compare."""
        if not all(output.passed for output in self.outputs):
            return "FAILED"
        return "NOT TESTED" if all(output.untested for output in self.outputs) else "PASSED"


class Table(NamedTuple):
    """Rows of one kind of difference. noun, number: for the summary; no noun if these rows are not differences."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    noun: str = ""
    number: int = 0


@dataclass(frozen=True)
class ModelDiff:
    """Result of `gk.diff`.

    Attributes:
        inputs: Inputs that differ in name or type, or that only one model has.
        outputs: Outputs likewise.
        only_a: Nodes of A without a counterpart in B.
        only_b: Nodes of B without a counterpart in A.
        changed: Corresponding nodes with another operator, other attributes or other operands.
        weights: Parameters, states and large floating-point constants that differ.
        updates: States that a run updates in another way.
        metadata: Metadata that differ.
        renamed_nodes: Names in A and B of corresponding nodes. Other names are not a difference.
        renamed_weights: Names in A and B of equal weights. Other names are not a difference.
        file_facts: Opset, producer and other facts of an ONNX file that differ. They are not a difference of the model.
        nodes: Numbers of nodes of A and of B, without constants and subgraphs.
        matched: Number of corresponding nodes.
        weights_compared: Number of weights whose elements were compared.
        behaviour: Outputs of both models, if they were run.
    """

    inputs: tuple[InterfaceDifference, ...]
    outputs: tuple[InterfaceDifference, ...]
    only_a: tuple[NodeEntry, ...]
    only_b: tuple[NodeEntry, ...]
    changed: tuple[NodeDifference, ...]
    weights: tuple[WeightDifference, ...]
    updates: tuple[Difference, ...]
    metadata: tuple[Difference, ...]
    renamed_nodes: tuple[tuple[str, str], ...]
    renamed_weights: tuple[tuple[str, str], ...]
    file_facts: tuple[Difference, ...]
    nodes: tuple[int, int]
    matched: int
    weights_compared: int
    behaviour: Behaviour | None = None

    @property
    def same_structure(self) -> bool:
        """Whether inputs, outputs, nodes and updates are equal, whatever the weights and metadata are."""
        return not any((self.inputs, self.outputs, self.only_a, self.only_b, self.changed, self.updates))

    @property
    def equal(self) -> bool:
        """Whether the models are equal: structure, weights, metadata, and outputs if they were compared."""
        ran = self.behaviour is None or self.behaviour.verdict == "PASSED"
        return self.same_structure and not self.weights and not self.metadata and ran

    def raise_if_different(self) -> None:
        """Raise CheckFailed if the models are not equal. The message is the summary."""
        if not self.equal:
            raise CheckFailed(self.summary)

    @property
    def summary(self) -> str:
        """One line: `equal: 12 nodes, 8 weights`, or the number of differences of each kind."""
        counts = [quantity(table.number, table.noun) for table in self.tables() if table.noun and table.number]
        if self.behaviour is not None and self.behaviour.verdict != "PASSED":
            counts.append(f"outputs: {self.behaviour.verdict}")
        if not counts:
            ran = " and equal outputs" if self.behaviour is not None else ""
            return f"equal: {quantity(self.matched, 'node')}, {quantity(self.weights_compared, 'weight')}{ran}"
        return "different: " + ", ".join(counts)

    def tables(self) -> list[Table]:
        """Return a table for each kind of difference; tables without differences have no rows."""
        two = ("A", "B")
        return [
            _ports("input", self.inputs),
            _ports("output", self.outputs),
            _nodes("A", self.only_a),
            _nodes("B", self.only_b),
            Table(
                "changed nodes", ("node", "operator", "change", *two), [*self._changes()], "changed node",
                len(self.changed),
            ),
            Table(
                "updates of states that differ", ("state", *two), [*map(_difference, self.updates)],
                "differing update", len(self.updates),
            ),
            Table(
                "weights that differ", ("name", *two, "difference"), [*map(_weight, self.weights)], "differing weight",
                len(self.weights),
            ),
            Table(
                "metadata that differ", ("key", *two), [*map(_difference, self.metadata)], "differing metadata value",
                len(self.metadata),
            ),
            Table("nodes with other names (not a difference)", two, self.renamed_nodes),
            Table("weights with other names (not a difference)", two, self.renamed_weights),
            Table("facts of the files (not a difference)", ("fact", *two), [*map(_difference, self.file_facts)]),
        ]  # fmt: skip

    def _changes(self) -> Iterator[tuple[str, ...]]:
        for node in self.changed:
            for change in node.differences:
                yield (_both(node.name_a, node.name_b), node.operator, *_difference(change))

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain data, for JSON."""
        found = asdict(self)
        if self.behaviour is not None:
            found["behaviour"]["verdict"] = self.behaviour.verdict
        return {"equal": self.equal, "same_structure": self.same_structure, "summary": self.summary, **found}

    def __repr__(self) -> str:
        return short_repr(self, lambda: ["", self.summary])

    def __str__(self) -> str:
        texts = [f"{table.title}\n{_text(table)}" for table in self.tables() if table.rows]
        if self.behaviour is not None:
            texts += ["outputs", *map(str, self.behaviour.outputs), *filter(None, [self.behaviour.reason])]
        return "\n\n".join([*texts, self.summary])


def _text(table: Table) -> str:
    more = len(table.rows) - _ROWS
    return format_table(table.columns, table.rows[:_ROWS]) + (f"\n... and {more:,} more" if more > 0 else "")


def _ports(kind: str, found: Sequence[InterfaceDifference]) -> Table:
    rows = [(_both(p.name_a, p.name_b), _shown(p.type_a), _shown(p.type_b), _port(p)) for p in found]
    return Table(f"{kind}s that differ", ("name", "A", "B", "difference"), rows, f"differing {kind}", len(rows))


def _port(found: InterfaceDifference) -> str:
    if found.name_a is None or found.name_b is None:
        return "only in B" if found.name_a is None else "only in A"
    told = []
    if found.name_a != found.name_b:
        told.append("other name")
    if found.type_a != found.type_b:
        told.append("other type")
    if found.value_a is not None:
        told.append(f"is {found.value_a} in A, {found.value_b} in B")
    return ", ".join(told)


def _both(a: str | None, b: str | None) -> str:
    """Return a name, or `a -> b` if it differs."""
    return " -> ".join(dict.fromkeys(name for name in (a, b) if name is not None))


def _nodes(side: str, found: Sequence[NodeEntry]) -> Table:
    rows = [(e.name, e.operator, ", ".join(e.inputs)) for e in found]
    return Table(f"nodes only in {side}", ("node", "operator", "inputs"), rows, f"{side}-only node", len(rows))


def _difference(found: Difference) -> tuple[str, str, str]:
    return found.what, _shown(found.a), _shown(found.b)


def _shown(text: str | None) -> str:
    if text is None:
        return "-"
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."


def _weight(found: WeightDifference) -> tuple[str, str, str, str]:
    if found.elements is None:
        told = "only in B" if found.name_a is None else "only in A" if found.name_b is None else "other type"
    else:
        told = "other role" if found.elements.same_bits else str(found.elements)
    return _both(found.name_a, found.name_b), _shown(found.type_a), _shown(found.type_b), told
