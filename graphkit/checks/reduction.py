"""Reduce a model that makes something fail to the smallest part that still does (delta debugging)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.checks.body_reduction import BodyReduction, ranges, run_recorded
from graphkit.checks.inputs import make_feeds
from graphkit.errors import GraphkitError, GraphkitWarning, UsageError
from graphkit.ir.types import TensorType
from graphkit.loading import load
from graphkit.model import Model
from graphkit.signatures import typed
from graphkit.transforms.rewritten import message_of

if TYPE_CHECKING:
    from graphkit.onnx_io.editing.reading import Message
    from graphkit.onnx_io.editing.subset import Cutter

MAX_TRIES = 1000
# Bytes of the largest recorded value that becomes a constant.
_LARGEST_CONSTANT = 1 << 16


@dataclass(frozen=True)
class Candidate:
    """A part of a model.

    Attributes:
        message: The part as an ONNX message.
        model: The part as a Model.
        feeds: Recorded values by name of the part's inputs. Inputs whose values could not be recorded are left out.
        operators: The operators of its nodes, each followed by those in its subgraphs.
    """

    message: Message
    model: Model
    feeds: Mapping[str, Any]
    operators: Sequence[str]


@dataclass(frozen=True)
class Reduction:
    """The result of a reduction.

    Attributes:
        smallest: The smallest part that still fails.
        nodes: The number of nodes of the original and its subgraphs, without constants.
        tries: How often the test was called.
        is_complete: False if the limit of tries ended the search.
        recorded: How the values of inputs were recorded: "ONNX Runtime", "graphkit", or "" if the model cannot be run.
    """

    smallest: Candidate
    nodes: int
    tries: int
    is_complete: bool
    recorded: str = ""


@typed("gk.reduce_model")
def reduce_model(
    model: Model | str | os.PathLike[str],
    still_fails: Callable[[Model], bool],
    *,
    inputs: Mapping[str, Any] | None = None,
    max_tries: int = MAX_TRIES,
    seed: int = 0,
) -> Model:
    """Return the smallest part of a model, as few nodes as possible, for which `still_fails` returns True.

    Parts are tried in a fixed order: single outputs, then ranges of nodes in dependency order (delta debugging), then
    the model without single nodes, outputs and operands. Then branches and loops are replaced by one of their branches,
    or by one iteration. If they have to stay, nodes, outputs and states are cut out of them. If a part reads a value
    that another part computed, this value becomes an input, or a constant if it is a small shape.

    Args:
        model: A Model, or the path of an .onnx or .json file.
        still_fails: Gets a Model, and returns whether it fails in the way that you look for.
        inputs: Arrays by name, for recording the values of new inputs. Missing ones are generated.
        max_tries: How often `still_fails` is called at most.
        seed: Seed of generated inputs.

    Returns:
        The smallest part that still fails.

    Raises:
        UsageError: `still_fails` returns False for the whole model.
    """
    found = reduce_message(
        message_of(model), lambda part: still_fails(part.model), inputs=inputs, max_tries=max_tries, seed=seed
    )
    return found.smallest.model


def reduce_message(
    message: Message,
    still_fails: Callable[[Candidate], bool],
    *,
    inputs: Mapping[str, Any] | None = None,
    max_tries: int = MAX_TRIES,
    seed: int = 0,
    label: str = "model",
    on_try: Callable[[int, int], None] = lambda nodes, tries: None,
    on_smaller: Callable[[Candidate], None] = lambda part: None,
) -> Reduction:
    """Reduce an ONNX message. See `reduce_model`.

    label: Name of the file, for errors.
    on_try: Called before each try with the number of nodes of the smallest part so far, and the number of tries.
    on_smaller: Called with each part that fails and becomes the smallest one; first twice with the whole model, as it
        is and with Constant nodes as initialisers.
    """
    from graphkit.onnx_io.editing.subset import Cutter

    if max_tries < 2:
        raise UsageError(f"max_tries must be at least 2, not {max_tries}: the whole model is tried twice")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphkitWarning)
        cutter = Cutter(message, label)
        values, engine = _recorded(message, cutter, inputs or {}, seed)
        search = _Search(cutter, still_fails, values, max_tries, on_try, on_smaller)
        complete = search.run(message)
        assert search.smallest is not None
        nodes = len(cutter.operators(range(cutter.count)))
        return Reduction(search.smallest, nodes, search.tries, complete, engine)


def _recorded(message: Message, cutter: Cutter, inputs: Mapping[str, Any], seed: int) -> tuple[dict[str, Any], str]:
    """Return the values of all inputs and nodes in one run, and the engine that ran the model."""
    try:
        feeds = make_feeds(load(message), given=inputs, seed=seed).arrays
    except GraphkitError:
        if inputs:
            raise
        return {}, ""
    whole = cutter.model(range(cutter.count), {}, {}, cutter.computed())
    if whole is None:
        return dict(feeds), ""
    results, engine = run_recorded(whole, feeds)
    return feeds | results, engine


@dataclass(frozen=True)
class _Part:
    """A part of the model: see the arguments of `Cutter.model`. embeds: recorded values become constants."""

    keep: tuple[int, ...]
    replaced: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] | None = None
    without: frozenset[tuple[int, int]] = frozenset()
    embeds: bool = False


class _TriesSpent(Exception):
    """The limit of tries is reached."""


class _Search:
    """The search for a small part that fails. `smallest` is the best so far, and `part` describes it."""

    def __init__(
        self,
        cutter: Cutter,
        still_fails: Callable[[Candidate], bool],
        values: dict[str, Any],
        max_tries: int,
        on_try: Callable[[int, int], None],
        on_smaller: Callable[[Candidate], None],
    ):
        self.still_fails = still_fails
        self.values = values
        self.max_tries = max_tries
        self.on_try = on_try
        self.on_smaller = on_smaller
        self.tries = 0
        self.smallest: Candidate | None = None
        self._seen: set[bytes] = set()
        self._start(cutter)

    def _start(self, cutter: Cutter) -> None:
        """Begin with all nodes of a model."""
        self.cutter = cutter
        self.embeds = False
        self.part = _Part(tuple(range(cutter.count)))
        self._shapes = {
            name: np.array(kind.constants, kind.dtype.numpy).reshape(kind.static_shape)
            for name, kind in cutter.types.items()
            if isinstance(kind, TensorType) and kind.is_static and kind.constants is not None
        }

    def run(self, original: Message) -> bool:
        """Search. Returns False if the limit of tries ended the search.

        Raises UsageError if the whole model does not fail.
        """
        from graphkit.onnx_io.editing.subset import Cutter

        if not self._tries(original, load(original), self.cutter.operators(self.part.keep)):
            raise UsageError("the whole model does not fail, so there is nothing to reduce")
        if not self.fails(self.part):
            raise UsageError(
                "the whole model fails, but no longer after its Constant nodes became initialisers, so it cannot be "
                "reduced"
            )
        try:
            self._top()
            bodies = BodyReduction(self)
            while bodies.run():
                assert self.smallest is not None
                self._start(Cutter(self.smallest.message))
                self._top()
        except _TriesSpent:
            return False
        return True

    def _top(self) -> None:
        """Reduce the nodes outside of subgraphs."""
        self._single_outputs()
        while True:
            before = self.part
            self._ranges()
            self._bypasses()
            if self.part == before:
                break
        if len(self.part.keep) > 1 and self.values:
            self._embedded()
        self._outputs()
        self._operands()

    # --- trying one part -------------------------------------------------------------------------

    def fails(self, part: _Part) -> bool:
        """Whether a part fails. If it does, it becomes the smallest one."""
        constants = self._constants(part)
        message = self.cutter.model(part.keep, part.replaced, constants, part.outputs, part.without)
        if message is None or not self.fails_message(message, self.cutter.operators(part.keep)):
            return False
        self.part = part
        return True

    def fails_message(self, message: Message, operators: Sequence[str]) -> bool:
        """Whether a message fails that was not tried yet. If it does, it becomes the smallest one."""
        from graphkit.onnx_io.editing.subset import digest_of

        digest = digest_of(message)
        if digest in self._seen:
            return False
        self._seen.add(digest)
        try:
            model = load(message)
        except GraphkitError:  # the part is not a valid model, so it would fail for another reason
            return False
        return self._tries(message, model, operators)

    def _tries(self, message: Message, model: Model, operators: Sequence[str]) -> bool:
        """Call the test for a part."""
        if self.tries >= self.max_tries:
            raise _TriesSpent
        self.on_try(len(operators if self.smallest is None else self.smallest.operators), self.tries)
        self.tries += 1
        feeds = {name: self.values[name] for name in model.inputs if name in self.values}
        candidate = Candidate(message, model, feeds, operators)
        if not self.still_fails(candidate):
            return False
        self.smallest = candidate
        self.on_smaller(candidate)
        return True

    def _constants(self, part: _Part) -> dict[str, np.ndarray]:
        """Values of cut names that become constants: shapes, and all smaller ones if the part embeds them."""
        from graphkit.onnx_io.editing.bodies import is_shape

        found = {}
        for name in self.cutter.cut_values(part.keep, part.replaced):
            value = self.values.get(name)
            if name in self._shapes:
                found[name] = self._shapes[name]
            elif isinstance(value, np.ndarray) and (
                is_shape(value) or (part.embeds and value.nbytes <= _LARGEST_CONSTANT)
            ):
                found[name] = value
        return found

    # --- the steps -------------------------------------------------------------------------------

    def _single_outputs(self) -> None:
        """Try each output alone, with the nodes that it depends on."""
        outputs = self.cutter.output_names
        for name in outputs if len(outputs) > 1 else ():
            if self.fails(replace(self.part, keep=self.cutter.ancestors(name), outputs=(name,))):
                return

    def _ranges(self) -> None:
        """Delta debugging: keep one of n ranges of nodes, or leave one out. n doubles if nothing is smaller."""
        count = 2
        while len(self.part.keep) > 1:
            keep = self.part.keep
            parts = list(ranges(keep, min(count, len(keep))))
            if any(self._keeps(part) for part in parts):
                count = 2
            elif count > 2 and any(self._keeps([i for i in keep if i not in set(part)]) for part in parts):
                count = max(count - 1, 2)
            elif count >= len(keep):
                return
            else:
                count = min(2 * count, len(keep))

    def _keeps(self, keep: Collection[int]) -> bool:
        outputs = self.part.outputs
        if outputs is not None and not set(outputs) <= self.cutter.results(keep):
            outputs = None
        return self.fails(replace(self.part, keep=tuple(keep), outputs=outputs, embeds=self.embeds))

    def _bypasses(self) -> None:
        """Leave out single nodes whose readers can read one of their operands instead, last nodes first."""
        for index in reversed(self.part.keep):
            if len(self.part.keep) == 1:
                return
            for source in self.cutter.bypasses(index):
                keep = tuple(i for i in self.part.keep if i != index)
                table = {**self.part.replaced, self.cutter.result(index): source}
                outputs = self.part.outputs
                if outputs is not None and self.cutter.result(index) in outputs:
                    outputs = None
                if self.fails(replace(self.part, keep=keep, replaced=table, outputs=outputs)):
                    break

    def _embedded(self) -> None:
        """Try ranges again with recorded values as constants instead of new inputs."""
        self.embeds = True
        self._ranges()

    def _outputs(self) -> None:
        """Leave out single outputs."""
        assert self.smallest is not None
        names = list(self.smallest.model.outputs)
        for name in list(names):
            rest = tuple(n for n in names if n != name)
            if rest and self.fails(replace(self.part, outputs=rest)):
                names.remove(name)

    def _operands(self) -> None:
        """Leave out the last operand of each node, such as a bias, while the node stays valid."""
        for index in self.part.keep:
            for place in reversed(range(self.cutter.required_operands(index), self.cutter.operand_count(index))):
                if not self.fails(replace(self.part, without=self.part.without | {(index, place)})):
                    break
