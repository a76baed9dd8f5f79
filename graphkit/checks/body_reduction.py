"""Reduce the subgraphs of a failing model: inline branches and iterations, and cut nodes, outputs and states."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from graphkit.errors import GraphkitError, ReferenceEnded
from graphkit.loading import load

if TYPE_CHECKING:
    from graphkit.ir.types import Type
    from graphkit.onnx_io.editing.bodies import Place
    from graphkit.onnx_io.editing.document import Document, Node
    from graphkit.onnx_io.editing.reading import Message


class Part(Protocol):
    """The smallest part so far."""

    @property
    def message(self) -> Message: ...
    @property
    def operators(self) -> Sequence[str]: ...


class Search(Protocol):
    """A search for a small part that fails. values: recorded values by name, which are extended."""

    values: dict[str, Any]

    @property
    def smallest(self) -> Part | None: ...
    def fails_message(self, message: Message, operators: Sequence[str]) -> bool: ...


def ranges(keep: Sequence[int], count: int) -> Iterator[Sequence[int]]:
    """Split a sequence into `count` ranges of about the same length."""
    bounds = [len(keep) * i // count for i in range(count + 1)]
    return (keep[a:b] for a, b in itertools.pairwise(bounds))


def run_recorded(message: Message, feeds: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the outputs of a model, and the engine that ran it: ONNX Runtime, graphkit, or "" if it cannot be run."""
    from graphkit.onnx_io.runtime_process import running

    try:
        with running(message, feeds) as pending:
            return pending.results(), "ONNX Runtime"
    except (GraphkitError, ReferenceEnded):
        return run_quietly(message, feeds)


def run_quietly(message: Message, feeds: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """As `run_recorded`, without ONNX Runtime, which prints the errors of nodes."""
    try:
        return load(message).run(feeds), "graphkit"
    except GraphkitError:
        return {}, ""


class BodyReduction:
    """Reduces the subgraphs of the smallest part of a search.

    Attributes:
        types: Types of values by name, including inputs of subgraphs.
    """

    def __init__(self, search: Search):
        self.search = search
        self.types: dict[str, Type] = {}
        self._recorded_types: dict[str, Type] = {}
        # Results and subgraphs of the nodes whose values were recorded.
        self._recorded: set[tuple[tuple[str, ...], str]] = set()

    @property
    def part(self) -> Part:
        assert self.search.smallest is not None
        return self.search.smallest

    def run(self) -> bool:
        """Reduce the subgraphs. Return whether a smaller part was found.

        Returns as soon as a subgraph is inlined, because its nodes can then be reduced like all others.
        """
        document, places = self._opened()
        if not places:
            return False
        self._record(self.part.message)
        self._observe(document)
        changed = False
        while not self._inlined():
            reduced = [step() for step in (self._cuts, self._bypasses, self._outputs, self._once)]
            if not any(reduced):
                return changed
            changed = True
        return True

    # --- values and types ------------------------------------------------------------------------

    def _observe(self, document: Document) -> None:
        from graphkit.onnx_io.editing.observed import observe

        self.types = self._recorded_types | observe(document)

    def _record(self, message: Message) -> None:
        """Record the values in both branches of each If, and in the first iteration of each loop.

        Each node with subgraphs is run alone, with the recorded values of its operands.
        """
        from graphkit.onnx_io.editing.subset import Cutter

        waiting = [message]
        while waiting:
            cutter = Cutter(waiting.pop())
            for index, node in enumerate(cutter.document.top.nodes):
                alone = cutter.model([index], {}, {}, None) if node.bodies else None
                if alone is not None:
                    for part in self._parts(node):
                        waiting += self._record_part(alone, part)

    def _parts(self, node: Node) -> list[str]:
        """Return the subgraphs of a node. The branch that runs is the first: its results are recorded."""
        parts = sorted(node.bodies, reverse=True)
        return parts if self._runs(node, parts[0]) else parts[::-1]

    def _runs(self, node: Node, part: str) -> bool:
        """Whether a subgraph runs, as far as recorded values tell."""
        taken = self.search.values.get(node.input(0)) if node.kind == "If" else True
        return taken is not None and (node.kind != "If" or bool(taken) == (part == "then_branch"))

    def _record_part(self, alone: Message, part: str) -> list[Message]:
        """Record the values in a subgraph of the only node of a model. Return the model with this subgraph inlined."""
        from graphkit.onnx_io.editing.bodies import inline, written
        from graphkit.onnx_io.editing.document import Document
        from graphkit.onnx_io.editing.subset import Cutter

        document = Document(alone)
        place = next(iter(_places(document)), None)
        if place is None or (tuple(place.node.outputs), part) in self._recorded:
            return []
        self._recorded.add((tuple(place.node.outputs), part))
        run = run_recorded if self._runs(place.node, part) else run_quietly
        replaced = inline(document, place, part, self._recorded_types)
        try:
            inner = written(document)
            cutter = Cutter(inner)
        except GraphkitError:
            return []
        values = self.search.values
        self._recorded_types |= cutter.types
        names = [name for name in cutter.computed() if name not in values]
        whole = cutter.model(range(cutter.count), {}, {}, names)
        if whole is not None and all(info.name in values for info in whole.graph.input):
            results, _ = run(whole, {info.name: values[info.name] for info in whole.graph.input})
            values.update((name, value) for name, value in results.items() if name not in values)
        for name, source in replaced.items():
            self._same(name, source)
            if source in cutter.types:
                self._recorded_types.setdefault(name, cutter.types[source])
        return [inner]

    def _same(self, name: str, source: str) -> None:
        """Record the value of a name that is equal to another."""
        if source in self.search.values:
            self.search.values.setdefault(name, self.search.values[source])

    # --- edits -----------------------------------------------------------------------------------

    def _opened(self) -> tuple[Document, list[Place]]:
        from graphkit.onnx_io.editing.document import Document

        document = Document(self.part.message)
        return document, _places(document)

    def _fails(self, document: Document, shrinks: bool = False) -> bool:
        """Whether an edited document fails. shrinks: only if it has fewer nodes."""
        from graphkit.onnx_io.editing.bodies import kinds, written

        copies: dict[str, str] = {}
        message = written(document, copies)
        operators = kinds(document.top.nodes)
        if shrinks and len(operators) >= len(self.part.operators):
            return False
        for name, source in copies.items():
            self._same(name, source)
        if not self.search.fails_message(message, operators):
            return False
        self._observe(self._opened()[0])
        return True

    def _each_body(self) -> Iterator[tuple[int, str]]:
        """Yield (number of the place, attribute) of each subgraph. The caller may make the model smaller meanwhile."""
        number = 0
        while number < len(places := self._opened()[1]):
            for part in list(places[number].node.bodies):
                yield number, part
            number += 1

    def _at(self, number: int) -> tuple[Document, Place] | None:
        """Return a copy of the smallest part, and a place in it."""
        document, places = self._opened()
        return (document, places[number]) if number < len(places) else None

    def _inlined(self) -> bool:
        from graphkit.onnx_io.editing.bodies import inline

        for number, part in self._each_body():
            document, place = self._required(number)
            inline(document, place, part, self.types, self.search.values)
            if self._fails(document):
                return True
        return False

    def _cuts(self) -> bool:
        changed = False
        for number, part in self._each_body():
            changed |= self._cut_ranges(number, part)
        return changed

    def _cut_ranges(self, number: int, part: str) -> bool:
        """Delta debugging in a subgraph: no node, one of n ranges of nodes, or all but one."""
        if self._keeps(number, part, ()):
            return True
        changed, count = False, 2
        while (size := self._size(number, part)) > 1:
            parts = list(ranges(range(size), min(count, size)))
            if any(self._keeps(number, part, keep) for keep in parts):
                changed, count = True, 2
            elif count > 2 and any(
                self._keeps(number, part, [i for i in range(size) if i not in set(left)]) for left in parts
            ):
                changed, count = True, max(count - 1, 2)
            elif count >= size:
                break
            else:
                count = min(2 * count, size)
        return changed

    def _size(self, number: int, part: str) -> int:
        found = self._at(number)
        body = None if found is None else found[1].node.bodies.get(part)
        return 0 if body is None else len(body.nodes)

    def _keeps(self, number: int, part: str, keep: Collection[int]) -> bool:
        from graphkit.onnx_io.editing.bodies import cut

        found = self._at(number)
        if found is None or part not in found[1].node.bodies:
            return False
        document, place = found
        return cut(document, place, part, set(keep), self.types, self.search.values) and self._fails(document, True)

    def _bypasses(self) -> bool:
        """Remove single nodes whose readers can read one of their operands instead, last nodes first."""
        from graphkit.onnx_io.editing.bodies import bypass, bypasses

        changed = False
        for number, part in self._each_body():
            for index in reversed(range(self._size(number, part))):
                found = self._at(number)
                for source in [] if found is None else list(bypasses(found[1], part, index, self.types)):
                    document, place = self._required(number)
                    bypass(document, place, part, index, source)
                    if self._fails(document, True):
                        changed = True
                        break
        return changed

    def _outputs(self) -> bool:
        """Remove unused outputs of If, Loop and Scan, and the states of loops whose final values they are."""
        from graphkit.onnx_io.editing.bodies import drop_output

        return self._each_place(lambda place: len(place.node.outputs), drop_output)

    def _once(self) -> bool:
        """Let loops run once."""
        from graphkit.onnx_io.editing.bodies import run_once

        return self._each_place(lambda place: 1, lambda document, place, _: run_once(document, place))

    def _each_place(self, count: Callable[[Place], int], edit: Callable[[Document, Place, int], bool]) -> bool:
        """Try `edit` with each number below `count`, in each node with subgraphs."""
        changed = False
        for number in range(len(self._opened()[1])):
            for index in reversed(range(count(self._required(number)[1]))):
                document, place = self._required(number)
                if edit(document, place, index) and self._fails(document):
                    changed = True
        return changed

    def _required(self, number: int) -> tuple[Document, Place]:
        found = self._at(number)
        assert found is not None
        return found


def _places(document: Document) -> list[Place]:
    from graphkit.onnx_io.editing.bodies import places

    return places(document)
