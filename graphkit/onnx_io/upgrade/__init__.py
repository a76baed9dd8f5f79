"""Version rules of import: a node of an older opset becomes one of the canonical opset, family by family.

A rule is declared for operators and the version below which it applies. It either changes the node's view (attribute
to input, another name, ...) and returns None, or builds the node's results and returns them. Rules of one operator
run oldest first, each bringing the node up to its `below`.

Modules of rules are imported when a node needs one: `_index` says which, written by
`python -P -m graphkit.checks.indexes`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from graphkit.errors import InvalidModel
from graphkit.ir import context
from graphkit.ir.graph import Value
from graphkit.onnx_io.repeated_imports import replaces
from graphkit.onnx_io.upgrade._index import MODULES
from graphkit.ops import constant

Results: TypeAlias = Sequence[Value | None]


# `becomes` of a rule that always builds its results out of other operators.
BUILT = "*"
# `below` of a rule that holds for files of every version.
ALWAYS = 1 << 30


class NodeView:
    """A node on its way into the graph: operands are Values (None: absent), attributes are Python values.

    `outputs` are the file's output names ("" where not wanted); `version` is the opset the node was written for.
    """

    __slots__ = ("attrs", "domain", "inputs", "label", "op_type", "outputs", "version")

    def __init__(
        self,
        op_type: str,
        domain: str,
        inputs: Sequence[Value | None],
        attrs: dict[str, Any],
        outputs: Sequence[str],
        version: int,
        label: str,
    ):
        self.op_type = op_type
        self.domain = domain
        self.inputs = list(inputs)
        self.attrs = attrs
        self.outputs = tuple(outputs)
        self.version = version
        self.label = label

    def input(self, index: int) -> Value | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def operand(self, index: int) -> Value:
        """Input `index`, which must be there; raises InvalidModel."""
        value = self.input(index)
        if value is None:
            raise InvalidModel(f"{self.label}: input {index} is missing")
        return value

    def set_input(self, index: int, value: Value | None) -> None:
        self.inputs.extend([None] * (index + 1 - len(self.inputs)))
        self.inputs[index] = value

    def wants(self, index: int) -> bool:
        """Whether output `index` has a name in the file."""
        return index < len(self.outputs) and self.outputs[index] != ""

    def take(self, name: str, default: Any = None) -> Any:
        """Remove attribute `name` and return its value."""
        return self.attrs.pop(name, default)

    def taken(self, *names: str) -> dict[str, Any]:
        """Remove those of these attributes that are given and return them by name."""
        return {name: self.attrs.pop(name) for name in names if name in self.attrs}

    def require(self, name: str) -> Any:
        """Remove attribute `name` and return its value; raises InvalidModel when it is absent."""
        if name not in self.attrs:
            raise InvalidModel(f"{self.label}: attribute {name!r} is required")
        return self.attrs.pop(name)

    def attribute_to_input(self, name: str, index: int, dtype: Any = np.int64) -> None:
        """Turn attribute `name`, when it is given, into constant input `index`."""
        if name in self.attrs:
            self.set_input(index, constant(np.asarray(self.attrs.pop(name), dtype)))


class Rule(NamedTuple):
    """`apply` brings nodes written for an opset under `below` up to it; `becomes` names another resulting operator."""

    below: int
    apply: Callable[[NodeView], Results | None]
    becomes: str | None


# Those of the modules that have been imported.
_rules: dict[tuple[str, str], list[Rule]] = {}


def upgrade(*operators: str, below: int, becomes: str | None = None, domain: str = "") -> Callable[[Any], Any]:
    """Declare the decorated function as the rule of `operators` for opsets under `below`."""

    def register(apply: Any) -> Any:
        for operator in operators:
            rules = [rule for rule in _rules.get((domain, operator), []) if not replaces(apply, rule.apply)]
            if any(rule.below == below for rule in rules):
                raise ValueError(f"two upgrade rules of {operator} below {below}")
            # A new list: another thread may read the old one.
            _rules[domain, operator] = sorted([*rules, Rule(below, apply, becomes)], key=lambda rule: rule.below)
        return apply

    return register


def rules() -> Iterator[tuple[str, str, Rule]]:
    """Domain, operator and rule, for all rules that have been imported."""
    for (domain, operator), found in _rules.items():
        for rule in found:
            yield domain, operator, rule


def next_rule(domain: str, operator: str, version: int) -> Rule | None:
    """The oldest rule that still applies to a node at `version`."""
    for module, below in MODULES.get((domain, operator), ()):
        if version < below:
            importlib.import_module(f"{__name__}.{module}")
    for rule in _rules.get((domain, operator), ()):
        if version < rule.below:
            return rule
    return None


def destination(domain: str, operator: str, version: int) -> tuple[str, bool]:
    """The operator that a node ends as, and whether a rule may build it without that operator being registered."""
    built = False
    while (rule := next_rule(domain, operator, version)) is not None:
        operator, version = rule.becomes or operator, rule.below
        built = built or rule.becomes == BUILT
        if operator == BUILT:
            break
    return operator, built


def run(view: NodeView) -> Results | None:
    """Apply every rule that `view` needs; returns the results when a rule built them, else None."""
    version = view.version
    while (rule := next_rule(view.domain, view.op_type, version)) is not None:
        with context.made_by(view.label, prefixed=True):
            results = rule.apply(view)
        if results is not None:
            return results
        version = rule.below
    return None
