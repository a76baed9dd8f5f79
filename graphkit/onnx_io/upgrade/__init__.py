"""Version rules of import: a node of an older opset becomes one of the canonical opset, family by family.

A rule is declared for operators and the version below which it applies. It either changes the node's view (attribute
to input, another name, ...) and returns None, or builds the node's results and returns them. Rules of one operator
run oldest first, each bringing the node up to its `below`.

Modules of rules are imported when a node needs them. `_index`, written by `python -P -m graphkit.checks.indexes`, lists
them.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from graphkit.errors import InvalidModel
from graphkit.ir import context
from graphkit.ir.graph import Value
from graphkit.named_tuples import NamedTuple
from graphkit.onnx_io.upgrade._index import MODULES
from graphkit.ops import constant

Results: TypeAlias = Sequence[Value | None]


# `becomes` of a rule that always replaces the node by other operators.
BUILT = "*"
# `below` of a rule that holds for files of every version.
ALWAYS = 1 << 30


class NodeView:
    """A node to be imported: operands are Values (None: absent), attributes are Python values.

    `outputs` are the file's output names ("" for unused ones). `version` is the opset that the node was written for.
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
        """Remove the named attributes that are present, and return them by name."""
        return {name: self.attrs.pop(name) for name in names if name in self.attrs}

    def require(self, name: str) -> Any:
        """Remove attribute `name` and return its value; raises InvalidModel when it is absent."""
        if name not in self.attrs:
            raise InvalidModel(f"{self.label}: attribute {name!r} is required")
        return self.attrs.pop(name)

    def attribute_to_input(self, name: str, index: int, dtype: Any = np.int64) -> None:
        """If attribute `name` is present, make it constant input `index`."""
        if name in self.attrs:
            self.set_input(index, constant(np.asarray(self.attrs.pop(name), dtype)))


class Rule(NamedTuple):
    """`apply` upgrades nodes of opsets under `below` to `below`. `becomes`: the new operator, if it changes."""

    below: int
    apply: Callable[[NodeView], Results | None]
    becomes: str | None


# Rules of the modules that were imported so far.
_rules: dict[tuple[str, str], list[Rule]] = {}


def replaces(function: Callable[..., Any], earlier: Callable[..., Any]) -> bool:
    """Return whether both functions are of the same module, and `earlier` is from an earlier, interrupted import of it.

    Each import of a module has its own namespace. Decorated functions are unwrapped first.
    """
    namespaces = [inspect.unwrap(given).__globals__ for given in (function, earlier)]
    return function.__module__ == earlier.__module__ and namespaces[0] is not namespaces[1]


def _kept(apply: Any, rules: list[Rule]) -> list[Rule]:
    """Return the rules that `apply` does not replace: those that an interrupted import of its module did not leave."""
    return [rule for rule in rules if not replaces(apply, rule.apply)]


def upgrade(*operators: str, below: int, becomes: str | None = None, domain: str = "") -> Callable[[Any], Any]:
    """Declare the decorated function as the rule of `operators` for opsets under `below`."""

    def register(apply: Any) -> Any:
        for operator in operators:
            rules = _kept(apply, _rules.get((domain, operator), []))
            if any(rule.below == below for rule in rules):
                raise ValueError(f"two upgrade rules of {operator} below {below}")
            # The list is replaced, not changed, because another thread may be reading it.
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
    """The operator after all upgrades, and whether a rule may build the results without that operator."""
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
