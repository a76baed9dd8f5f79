"""Declarations of passes: properties that a pass requires, ensures and breaks. They determine the order of passes."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, cast

from graphkit.errors import CheckFailed, PassOrderError
from graphkit.ir.graph import Graph, Node
from graphkit.passes.core._index import PASSES
from graphkit.passes.core.relevance import CONDITIONS, Condition

# The operators of control flow.
CONTROL = frozenset({"If", "Loop", "Scan"})


class Property(Enum):
    """Properties of a graph between passes, and of its subgraphs if the passes that ensure them enter subgraphs."""

    STREAMS_BOUND = "every random node has a stream"
    SIMPLIFIED = "no identities, and no chains of operators that return their input"
    CONSTANTS_FOLDED = "every value that depends only on constants is a constant"
    EQUALS_MERGED = "no two equal nodes"
    CONTROL_MERGED = "no two loops or branches that do the same on the same operands"
    HALVES_WIDENED = "float16 and bfloat16 are computed in float32"
    RANKS_KNOWN = "an operand has a known rank if its reader determines the rank"
    COMPOSITES_EXPANDED = "only composite operators that have their own kernel are left"
    SCANS_ALONG_FIRST_AXIS = "scans read and write along the first axis"
    QUANTISED_INTEGER = "operators between dequantisation and quantisation of 8 bits are computed on integers"
    BROADCASTS_LAZY = "no Expand whose pointwise reader can broadcast by itself"
    LAYER_NORMS_FUSED = "formulas of layer normalisation are operators"
    GELUS_FUSED = "formulas of GELU are operators"
    ACTIVATIONS_FUSED = "formulas of other activations are operators"
    SOFTMAXES_FUSED = "formulas of softmax are operators"
    SOFTMAX_GRADIENTS_FUSED = "formulas of the gradients of softmax are operators"
    TRANSPOSES_MERGED = "no transpose of a transpose"
    ATTENTION_FUSED = "attention is one operator"
    HEADS_REPEATED = "heads that share a factor have the form that exporters write"
    HEADS_SHARED = "heads of keys and values are not repeated"
    CACHES_ATTENDED = "attention operators append keys and values to their cache"
    RESHAPES_MERGED = "no chains of reshapes"
    TRANSPOSED_CONVOLUTIONS_CONVERTED = "transposed convolutions without strides are convolutions"
    TAPS_MEET_DATA = "convolutions of known sizes have no outer taps that only read padding"
    BATCH_NORMS_FOLDED = "batch normalisation at inference is folded into the weights before it"
    MATMULS_FUSED = "matrix products are fused with the operators around them"
    CONVOLUTIONS_FUSED = "convolutions are fused with the operators behind them"
    CHANNELS_LAST = "convolutions of the requested types have the channels last"
    BACKENDS_SERVED = "nodes that a backend computes are in groups, without random nodes and collectives"
    POINTWISE_APART = "pointwise nodes are not fused"

    # Enum's own hashes the name, in Python.
    __hash__ = object.__hash__


# The properties of a graph before the first pass.
INITIAL = frozenset({Property.POINTWISE_APART})

Rewrite: TypeAlias = Callable[[Graph], Graph]
# Returns a node for which a property does not hold; None if it holds.
Check: TypeAlias = Callable[[Graph], Node | None]
P = ParamSpec("P")


class Pass(Generic[P]):
    """A function from graph to graph that does not change the results of the graph. `graph_pass` makes it.

    Attributes:
        name: Its name.
        requires: Properties that must hold before it.
        ensures: Properties that hold after it.
        breaks: Properties that may no longer hold after it.
        check: Returns a node that contradicts `ensures`; None if there is none.
        at: Names of operators. A graph that contains none of them is returned unchanged. None: the pass applies to any
            graph.
        beside: Further groups of names. A graph that contains no operator of one of the groups is returned unchanged,
            too.
        may_change: Returns False for graphs that the pass does not change, apart from their subgraphs. If it returns
            False for a graph and all its subgraphs, the graph is returned unchanged. None: always True.
    """

    def __init__(
        self,
        apply: Callable[Concatenate[Graph, P], Graph],
        name: str,
        requires: Iterable[Property] = (),
        ensures: Iterable[Property] = (),
        breaks: Iterable[Property] = (),
        check: Check | None = None,
        at: Iterable[str] | None = None,
        beside: Iterable[Iterable[str]] = (),
        may_change: Condition | None = None,
    ):
        self._apply = apply
        self.name = name
        self.requires = frozenset(requires)
        self.ensures = frozenset(ensures)
        self.breaks = frozenset(breaks)
        self.check = check
        self.at = None if at is None else frozenset(at)
        self.beside = tuple([frozenset(names) for names in beside])
        self.may_change = may_change
        # A graph needs an operator of each of these groups.
        self._needed = self.beside if self.at is None else (self.at, *self.beside)
        self.__name__, self.__doc__, self.__module__ = apply.__name__, apply.__doc__, apply.__module__

    def __call__(self, graph: Graph, *args: P.args, **kwargs: P.kwargs) -> Graph:
        return self._apply(graph, *args, **kwargs) if self.concerns(graph) else graph

    def concerns(self, graph: Graph) -> bool:
        """Return whether the pass may change the graph, by `at`, `beside` and `may_change`."""
        present = graph.operators
        has_control = not present.isdisjoint(CONTROL)
        for names in self._needed:
            if present.isdisjoint(names) and not (has_control and _has_any(graph, names)):
                return False
        return self.may_change is None or _any_graph(graph, self.may_change)

    def with_options(self, check: Check | None = None, **options: Any) -> Pass[...]:
        """Return the pass with these keyword arguments. check: replaces the pass's own check, if the options change
        what it ensures.
        """

        @functools.wraps(self, updated=())
        def apply(graph: Graph, *args: Any, **kwargs: Any) -> Graph:
            return self._apply(graph, *args, **{**options, **kwargs})

        def found(graph: Graph) -> Node | None:
            own = check or self.check
            return None if own is None else own(graph)

        properties = self.requires, self.ensures, self.breaks
        return Pass(apply, self.name, *properties, found, self.at, self.beside, self.may_change)

    def verify(self, graph: Graph) -> None:
        """Raise CheckFailed if `check` finds a node in the pass's result `graph` that contradicts what the pass
        ensures.
        """
        found = None if self.check is None else self.check(graph)
        if found is not None:
            raise CheckFailed(f"pass {self.name} ensures: {_listed(self.ensures)}; but it left {found.describe()}")

    def __repr__(self) -> str:
        return f"<Pass {self.name}>"


# A pass, or (name, function) for a function without declarations.
Step: TypeAlias = Pass[...] | tuple[str, Rewrite]


def _has_any(graph: Graph, operators: frozenset[str]) -> bool:
    """Return whether the graph, or a subgraph of its If, Loop and Scan nodes, contains one of these operators."""
    if not graph.operators.isdisjoint(operators):
        return True
    if graph.operators.isdisjoint(CONTROL):
        return False
    nodes = (node for node in graph.nodes if node.op.name in CONTROL)
    return any(_has_any(inner, operators) for node in nodes for inner in node.op.subgraphs().values())


def _any_graph(graph: Graph, condition: Condition) -> bool:
    """Return whether the graph, or one of its subgraphs, fulfils the condition."""
    if condition(graph):
        return True
    owners = graph.cached(_with_subgraphs)
    return any(_any_graph(inner, condition) for node in owners for inner in node.op.subgraphs().values())


def _with_subgraphs(graph: Graph) -> Sequence[Node]:
    # Operators of graphkit have subgraphs only if their class declares such attributes.
    if not any(getattr(kind, "_graphs", True) for kind in {type(node.op) for node in graph.nodes}):
        return ()
    return [node for node in graph.nodes if node.op.subgraphs()]


# By name: all passes that exist so far, those that `deferred` made, and the imported passes that replace the latter.
_known: dict[str, Pass[...]] = {}
_deferred: dict[str, Pass[...]] = {}
_imported: dict[str, Pass[...]] = {}


def graph_pass(
    *,
    requires: Iterable[Property] = (),
    ensures: Iterable[Property] = (),
    breaks: Iterable[Property] = (),
    check: Check | None = None,
    at: Collection[str] | None = None,
    beside: Collection[Collection[str]] = (),
) -> Callable[[Callable[Concatenate[Graph, P], Graph]], Pass[P]]:
    """Return a decorator that makes a Pass from a function from graph to graph. For the arguments, see Pass."""

    def declare(function: Callable[Concatenate[Graph, P], Graph]) -> Pass[P]:
        name = function.__name__
        is_indexed = name in PASSES and function.__module__ == _module_of(name)
        may_change = CONDITIONS.get(name) if is_indexed else None
        made = Pass(function, name, requires, ensures, breaks, check, at, beside, may_change)
        if not is_indexed:
            return made
        known: Any = _known.setdefault(name, made)
        if known is not made:
            functools.update_wrapper(known, function)
            if known is _deferred.get(name):
                # The deferred pass takes over this one when its module is complete: another thread may be using it now.
                _imported[name] = made
            else:
                # An earlier import was interrupted after it had made the pass. Functions that the old pass calls may be
                # missing.
                known.__dict__.update(made.__dict__)
        return cast("Pass[P]", known)

    return declare


def deferred(name: str, may_change: Condition | None = None) -> Pass[...]:
    """Return the pass of this name. Its module is imported when the pass is first called for a graph that it may
    change.

    `graphkit.passes.core._index` contains its declaration. `python -P -m graphkit.checks.indexes` writes that file.

    may_change: The condition of a pass that `CONDITIONS` does not list.
    """
    path = _module_of(name)
    if name in _known:
        if _known[name] is not _deferred.get(name):
            importlib.import_module(path)  # waits for another thread
        return _known[name]

    def apply(graph: Graph, *args: Any, **kwargs: Any) -> Graph:
        importlib.import_module(path)
        made.__dict__.update({**_imported[name].__dict__, "may_change": made.may_change})
        return made._apply(graph, *args, **kwargs)

    def check(graph: Graph) -> Node | None:
        importlib.import_module(path)
        own = _imported[name].check
        return None if own is None else own(graph)

    apply.__name__, apply.__module__ = name, path
    _, at, beside, *properties = PASSES[name]
    requires, ensures, breaks = ([Property[p] for p in names] for names in properties)
    condition = may_change or CONDITIONS.get(name)
    made: Pass[...] = Pass(apply, name, requires, ensures, breaks, check, at, beside, condition)
    return _known.setdefault(name, _deferred.setdefault(name, made))


def _module_of(name: str) -> str:
    return f"graphkit.passes.{PASSES[name][0]}"


def pipeline(*passes: Pass[...], given: Iterable[Property] = INITIAL) -> tuple[Pass[...], ...]:
    """Return the passes in this order. Raises PassOrderError if a required property does not hold at that place.

    given: The properties that hold before the first pass.
    """
    held_after(passes, given)
    return passes


def held_after(passes: Sequence[Pass[...]], given: Iterable[Property] = INITIAL) -> frozenset[Property]:
    """Return the properties that hold after the passes. Raises PassOrderError as `pipeline` does."""
    held = frozenset(given)
    for place, step in enumerate(passes):
        if missing := step.requires - held:
            wanted = next(p for p in Property if p in missing)
            raise PassOrderError(f"pass {step.name} requires {_listed([wanted])}: {_reason(wanted, passes, place)}")
        held = held - step.breaks | step.ensures
    return held


def _reason(wanted: Property, passes: Sequence[Pass[...]], place: int) -> str:
    for before in reversed(passes[:place]):
        if wanted in before.breaks:
            return f"{before.name} before it breaks that"
    later = next((p for p in passes[place:] if wanted in p.ensures), None)
    return "no pass before it ensures that" if later is None else f"{later.name}, which ensures that, comes later"


def ordered(*passes: Pass[...]) -> tuple[Pass[...], ...]:
    """Order distinct passes so that their declarations fit, as close to the given order as possible.

    Passes that break a property come before passes that ensure it, and these come before passes that require it. If no
    pass ensures a property, the passes that require it come before those that break it. `pipeline` checks whether the
    requirements hold.

    Raises PassOrderError if the declarations contradict each other, or if a pass is listed twice.
    """
    if len(set(passes)) != len(passes):
        twice = next(p for i, p in enumerate(passes) if p in passes[:i])
        raise PassOrderError(f"pass {twice.name} is listed twice, so its order is unclear; give the order yourself")
    waiting: dict[Pass[...], set[Pass[...]]] = {p: set() for p in passes}
    all_breaking, all_ensuring, all_requiring = (
        _by_property(passes, kind) for kind in ("breaks", "ensures", "requires")
    )
    for wanted in Property:
        breaking, ensuring = all_breaking.get(wanted, ()), all_ensuring.get(wanted, ())
        requiring = all_requiring.get(wanted, ())
        for first, second in ((breaking, ensuring), (ensuring, requiring)) if ensuring else ((requiring, breaking),):
            for p in second:
                waiting[p].update(q for q in first if q is not p)
    place = {p: i for i, p in enumerate(passes)}
    ready = [p for p, before in waiting.items() if not before]
    result: list[Pass[...]] = []
    while ready:
        chosen = min(ready, key=place.__getitem__)
        ready.remove(chosen)
        result.append(chosen)
        for p, before in waiting.items():
            if chosen in before:
                before.remove(chosen)
                if not before:
                    ready.append(p)
    if len(result) < len(passes):
        left = ", ".join(p.name for p in passes if p not in result)
        raise PassOrderError(f"the declarations of these passes contradict each other, so no order is valid: {left}")
    return tuple(result)


def _by_property(passes: Iterable[Pass[...]], kind: str) -> dict[Property, list[Pass[...]]]:
    """Return the passes that declare each property. kind: "requires", "ensures" or "breaks"."""
    found: dict[Property, list[Pass[...]]] = {}
    for step in passes:
        for declared in getattr(step, kind):
            found.setdefault(declared, []).append(step)
    return found


def _listed(properties: Iterable[Property]) -> str:
    return "; ".join(f"{p.name} ({p.value})" for p in Property if p in set(properties))
