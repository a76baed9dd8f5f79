"""List the operators of a file, and how each is implemented: as an operator, an import rule, or a function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

from graphkit.named_tuples import NamedTuple
from graphkit.onnx_io import functions, upgrade
from graphkit.onnx_io.scopes import GRADIENT, RawNode, Region
from graphkit.onnx_io.validate import version_of
from graphkit.ops import registry

# How graphkit runs a node; None: it cannot.
Means: TypeAlias = Literal["operator", "rule", "function"] | None


class Use(NamedTuple):
    """A node, its operator (`domain`, `name`) after upgrades, and how graphkit runs it."""

    node: RawNode
    domain: str
    name: str
    means: Means


def uses(top: Region, opsets: Mapping[str, int], library: functions.Library) -> Iterator[Use]:
    """Every node of a file, including subgraphs. The body of each function is visited once."""
    seen: set[int] = set()
    known: dict[tuple[str, str, int], tuple[str, Means]] = {}
    pending: list[tuple[Region, Mapping[str, int]]] = [(top, opsets)]
    while pending:
        region, versions = pending.pop()
        for _, raw in region.walk():
            key = raw.domain, raw.op_type, version_of(raw.domain, versions)
            if key not in known:
                known[key] = _carried_out(*key)
            name, means = known[key]
            function = library.find(raw) if means in (None, "function") else None
            if function is not None:
                means = "function"
                if id(function.region) not in seen:
                    seen.add(id(function.region))
                    pending.append((function.region, function.opsets))
            yield Use(raw, raw.domain, name, means)


def implements(domain: str, operator: str, version: int) -> bool:
    """Whether graphkit can run an operator of this version without the functions of the model."""
    return _carried_out(domain, operator, version)[1] is not None


def _carried_out(domain: str, name: str, version: int) -> tuple[str, Means]:
    """The operator after upgrades, and how graphkit runs it. The functions of the model are not considered."""
    target, built = upgrade.destination(domain, name, version)
    if registry.find(domain, target) is not None:
        return target, "operator"
    if built or (domain, name) == GRADIENT:
        return name if target == upgrade.BUILT else target, "rule"
    return target, "function" if functions.has_standard_body(domain, name, version) else None
