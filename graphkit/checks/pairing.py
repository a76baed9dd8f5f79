"""Which values of two models belong together, and the nodes between such values."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from graphkit.checks.trace import Step, Trace
from graphkit.named_tuples import NamedTuple

# If fewer than this part of the results have equal names, the others are matched by structure.
_ENOUGH = 0.5
# Operators that structural matching looks through.
_TRANSPARENT = frozenset({"Cast", "Identity", "QuantizeLinear", "DequantizeLinear"})


class Pair(NamedTuple):
    """Names of two values that belong together: of the first side, and of the second one."""

    ours: str
    theirs: str


class Cut(NamedTuple):
    """Nodes of a part of a model in topological order, and the values that the part reads from outside."""

    steps: tuple[int, ...]
    reads: tuple[str, ...]


class Producers:
    """The nodes of a trace by the values that they make."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self.of = {name: i for i, step in enumerate(trace.steps) for name in step.outputs}

    def cut(self, targets: Iterable[str], given: Container[str], without: Container[int] = ()) -> Cut:
        """Return the nodes that compute `targets` from values in `given`. without: numbers of nodes to leave out."""
        found: set[int] = set()
        reads: dict[str, None] = {}
        stack = [name for name in targets if name not in given]
        reads.update((name, None) for name in targets if name in given)
        while stack:
            name = stack.pop()
            step = self.of.get(name)
            if step is None or step in without:
                reads[name] = None
                continue
            if step in found:
                continue
            found.add(step)
            for operand in self.trace.steps[step].inputs:
                if operand and operand not in self.trace.stored:
                    if operand in given:
                        reads[operand] = None
                    else:
                        stack.append(operand)
        made = {name for i in found for name in self.trace.steps[i].outputs}
        return Cut(tuple(sorted(found)), tuple(name for name in reads if name not in made))


def pairs_of(
    first: Trace, second: Trace, inputs: Sequence[tuple[str, str]], outputs: Sequence[tuple[str, str]]
) -> tuple[list[Pair], bool]:
    """Return the pairs of results of nodes in the order of the first trace, and whether structure was used.

    inputs, outputs: pairs of inputs and outputs of the models.
    """
    made = {name for step in second.steps for name in step.outputs}
    ours = [name for step in first.steps for name in step.outputs]
    table = {name: name for name in ours if name in made}
    by_structure = len(table) < _ENOUGH * min(len(ours), len(made))
    if by_structure:
        table |= _by_structure(first, second, dict(inputs), table)
    table |= {a: b for a, b in outputs if b in made and a in ours}
    order = {name: i for i, name in enumerate(ours)}
    return [Pair(a, table[a]) for a in sorted(table, key=lambda name: order[name])], by_structure


def _by_structure(first: Trace, second: Trace, inputs: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """Match nodes with the same operator whose operands are matched. Of several such nodes, the order decides."""
    table = {**inputs, **known}
    keys = {b: a for a, b in table.items()}
    waiting: dict[tuple[str, tuple[str, ...]], list[Step]] = {}
    for step in second.steps:
        operands = _operands(step, second, keys)
        if step.operator in _TRANSPARENT:
            if operands[0] in table and step.outputs[0] not in keys:
                keys[step.outputs[0]] = operands[0]
            continue
        waiting.setdefault((step.operator, operands), []).append(step)
        # The results have no counterpart yet: give them names of their own, which the first side may take over.
        for i, name in enumerate(step.outputs):
            keys.setdefault(name, _key(step.operator, operands, i, len(waiting[step.operator, operands])))
    return _taken(first, table, waiting)


def _taken(
    first: Trace, table: dict[str, str], waiting: Mapping[tuple[str, tuple[str, ...]], list[Step]]
) -> dict[str, str]:
    own = {a: a for a in table}
    count: dict[tuple[str, tuple[str, ...]], int] = {}
    found: dict[str, str] = {}
    for step in first.steps:
        operands = _operands(step, first, own)
        if step.operator in _TRANSPARENT:
            own.setdefault(step.outputs[0], operands[0])
            continue
        key = (step.operator, operands)
        count[key] = count.get(key, 0) + 1
        for i, name in enumerate(step.outputs):
            own.setdefault(name, _key(step.operator, operands, i, count[key]))
        others = waiting.get(key, ())
        if len(others) >= count[key]:
            found.update(zip(step.outputs, others[count[key] - 1].outputs, strict=False))
    return found


def _operands(step: Step, trace: Trace, keys: Mapping[str, str]) -> tuple[str, ...]:
    """The operands of a node by names that both sides share; parameters have none."""
    return tuple("" if not name or name in trace.stored else keys.get(name, name) for name in step.inputs)


def _key(operator: str, operands: tuple[str, ...], index: int, occurrence: int) -> str:
    return f"{hash((operator, operands)):x}.{index}.{occurrence}"
