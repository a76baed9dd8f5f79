"""Find the first node where two engines, or two models, differ beyond measured noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphkit.checks.comparison import OutputReport
from graphkit.checks.findings import Bisection
from graphkit.checks.inputs import fixed_sizes, make_feeds
from graphkit.checks.isolation import Comparer, Found
from graphkit.checks.pairing import Pair
from graphkit.checks.segment_search import hidden_segment, smallest_segment
from graphkit.checks.sides import input_pairs, match_inputs, sides_of
from graphkit.checks.suspect import write_suspect
from graphkit.checks.verify import random_nodes
from graphkit.checks.walk import Walk
from graphkit.errors import (
    FileChanged,
    GraphkitError,
    InvalidModel,
    LimitReached,
    OutOfMemory,
    RuntimeFailure,
    UnsupportedError,
    UsageError,
)
from graphkit.model import Model
from graphkit.signatures import typed

# The values that are computed at once: at most this number, and about this number of bytes.
_VALUES, _BYTES = 200, 1 << 27
# Bytes that a value of unknown size is taken for.
_UNKNOWN_BYTES = 1 << 20


@typed("gk.bisect")
def bisect(
    model: Model,
    inputs: Mapping[str, Any] | None = None,
    *,
    against: Any = None,
    engine: str | None = None,
    against_engine: str | None = None,
    source: Any = None,
    against_source: Any = None,
    rtol: float | None = None,
    atol: float | None = None,
    output: str | Path | None = None,
    opset: int | None = None,
    fill: str = "random",
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    threads: int | None = None,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> Bisection:
    """Find the first node where graphkit and ONNX Runtime, or two models, differ beyond measured noise.

    Both sides compute their values in topological order, part by part, so that few of them are in memory at a time.
    Values with equal names are compared by the rules of `gk.verify`. If a value is not within the tolerances, the node
    that makes it runs alone on both sides, with the same inputs. If its results still differ, the search ends there.
    Otherwise the error grew on the way: it is compared with measured rounding noise. If noise explains it, the second
    side continues with the values of the first one.

    If all values agree but the outputs of the whole models do not, the fault disappears when values are observed, for
    example because it is in a fused kernel. Then the models are cut in two, repeatedly, until the smallest group of
    nodes that differs is found.

    If few values have equal names, they are matched by structure: nodes with the same operator and the same operands
    belong together. An If, Loop or Scan is compared as a whole.

    Args:
        model: The model.
        inputs: Arrays by name. Missing ones are generated.
        against: The other model, see `gk.verify` (default: `model` itself, in the other engine).
        engine: Engine of `model`: "graphkit" or "onnxruntime" (default: "graphkit").
        against_engine: Engine of `against`, see `gk.verify`.
        source: The ONNX file (or ModelProto) that `model` was read from. ONNX Runtime runs it instead of an export.
        against_source: The ONNX file (or ModelProto) that `against` was read from, if it is a Model.
        rtol: Relative tolerance (default: as in `gk.verify`). With a tolerance, rounding noise is not measured.
        atol: Absolute tolerance (default: as in `gk.verify`).
        output: Path of an `.onnx` file to write: only the nodes that differ. Their inputs are written to an `.npz` file
            beside it. If `against` is another model, its nodes are written to a second file, `NAME-against.onnx`.
        opset: Opset of exports (default: as in `gk.verify`).
        fill: Contents of generated inputs, as in `gk.verify`.
        shapes: Input name to shape, for generated inputs with unknown sizes.
        seed: Seed of generated inputs.
        threads: Number of CPU threads of both engines (default: GRAPHKIT_NUM_THREADS, else one per core).
        device: Device that graphkit runs models on: "cpu" or "cuda".
        progress: Called with the numbers of values that are compared, and of all values.

    Returns:
        The first divergence, if there is one, and the number of values that were compared.

    Raises:
        UsageError: The model draws random numbers, no value of the two models can be matched, or `output` does not end
            in .onnx.
        InputError: An input is unknown, or does not fit the model.
    """
    if output is not None and Path(output).suffix != ".onnx":
        raise UsageError(f"output {output}: the name of the file must end in .onnx")
    if output is not None and not Path(output).parent.is_dir():
        raise UsageError(f"output {output}: there is no folder {Path(output).parent}")
    first, second = sides_of(
        model, against, engine, against_engine, source=source, against_source=against_source, opset=opset,
        threads=threads, device=device,
    )  # fmt: skip
    if drawing := [*random_nodes(model), *(random_nodes(against) if isinstance(against, Model) else ())]:
        raise UsageError(f"a model that draws random numbers cannot be compared: {', '.join(drawing[:5])}")
    fixed = {} if against is None else fixed_sizes(input_pairs(first, second))
    feeds = make_feeds(model, fill, given=inputs or {}, shapes=shapes, fixed=fixed, seed=seed)
    arrays, notes = (feeds.arrays, ()) if against is None else match_inputs(first, second, feeds.arrays)
    comparer = Comparer(first, second, arrays, rtol, atol)
    found, compared = _located(comparer, progress)
    notes += comparer.notes
    result = Bisection(
        found.divergence if found else None, compared, comparer.unmatched, comparer.labels, feeds.guesses, notes
    )  # fmt: skip
    if output is None or found is None:
        return result
    try:
        files, command = write_suspect(comparer, found, Path(output))
    except UnsupportedError as error:
        return replace(result, notes=(*notes, f"the nodes that differ cannot be written: {error}"))
    return replace(result, files=files, command=command)


def _located(comparer: Comparer, progress: Callable[[int, int], None] | None) -> tuple[Found | None, int]:
    """Return the first divergence, with the smallest group of nodes that shows it, and the count of compared values."""
    search = _Search(comparer, progress)
    found = search.run()
    if found is None:
        whole = comparer.run(comparer.whole())
        if not all(report.passed for report in whole):
            amplified = search.amplified
            found = hidden_segment(comparer) if amplified is None else smallest_segment(comparer, amplified)
    elif found.divergence.kind != "node":
        found = smallest_segment(comparer, found)
    elif found.divergence.operator == found.divergence.other_operator == "If":
        found = replace(found, divergence=replace(found.divergence, inside=_in_branch(comparer, found)))
    return found, search.compared


class _Search:
    """Compares the values of both sides in topological order.

    amplified: the first node that agrees given equal inputs, but turns differences within rounding into different
    values; None if there is none. compared: number of values that were compared.
    """

    def __init__(self, comparer: Comparer, progress: Callable[[int, int], None] | None):
        self._comparer, self._progress = comparer, progress
        pairs = comparer.pairs
        self._ours = Walk(comparer.ours, comparer.arrays, [p.ours for p in pairs])
        self._theirs = Walk(comparer.theirs, comparer.feeds, [p.theirs for p in pairs])
        # Values of the first side that the second one last continued with: the path begins there.
        self._base: Mapping[str, Any] = comparer.arrays
        self._values: dict[str, tuple[Any, Any]] = {}
        # The number of values that are computed at once: fewer after an error, until the node that fails is alone.
        self._most = _VALUES
        self.amplified: Found | None = None
        self.compared = 0

    def run(self) -> Found | None:
        """Return the first node that differs, or None."""
        start, pairs = 0, self._comparer.pairs
        while start < len(pairs):
            chunk = self._chunk(start)
            try:
                found, agreed = self._examined(start, chunk)
            except (LimitReached, OutOfMemory, FileChanged):
                raise
            except (InvalidModel, RuntimeFailure) as error:
                if len(chunk) == 1:
                    return self._failing(start, chunk[0], error)
                self._most = len(chunk) // 2
                continue
            if found is not None:
                return found
            if agreed < len(chunk):
                self._continue_after(chunk[: agreed + 1])
                agreed += 1
            start += agreed
            if self._progress is not None:
                self._progress(start, len(pairs))
        return None

    def _chunk(self, start: int) -> list[Pair]:
        """The next pairs, as many as are computed at once."""
        found: list[Pair] = []
        nbytes = 0
        for pair in self._comparer.pairs[start : start + self._most]:
            size = self._comparer.nbytes(pair)
            nbytes += _UNKNOWN_BYTES if size is None else size
            if found and nbytes > _BYTES:
                break
            found.append(pair)
        return found

    def _examined(self, start: int, chunk: Sequence[Pair]) -> tuple[Found | None, int]:
        """Compare a chunk. Return the divergence, if there is one, and how many pairs agree before the next event."""
        self._values = {}  # frees the previous chunk
        ours = self._ours.advance([p.ours for p in chunk])
        held = self._held(self._ours.before, self._theirs.held)
        try:
            theirs = self._theirs.advance([p.theirs for p in chunk])
        except GraphkitError:
            self._ours.undo()
            raise
        self._values = {**held, **{p.ours: (ours[p.ours], theirs[p.theirs]) for p in chunk}}
        for i, pair in enumerate(chunk):
            self._comparer.saw(pair, theirs[pair.theirs])
            reports = self._comparer.compared({pair.ours: ours[pair.ours]}, {pair.ours: theirs[pair.theirs]})
            self.compared += any(not report.untested for report in reports)
            if all(report.passed for report in reports):
                continue
            found, is_explained = self._suspect(start + i, chunk[i:])
            if found is not None or is_explained:
                return found, i
        return None, len(chunk)

    def _held(self, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """The values that both sides hold, by their names on the first side."""
        names = ((name, self._comparer.name_of_second(name)) for name in ours)
        return {name: (ours[name], theirs[other]) for name, other in names if other is not None and other in theirs}

    def _failing(self, index: int, pair: Pair, error: GraphkitError) -> Found:
        """Describe a node that one side cannot run. Raises `error` if that is true of both sides, or of neither."""
        comparer = self._comparer
        case = comparer.case([pair], None, self._ours.held)
        failed = [label for label, fails in zip(comparer.labels, comparer.failures(case), strict=True) if fails]
        if len(failed) != 1:
            raise error
        held = self._held(self._ours.held, self._theirs.held)
        return Found(comparer.divergence("node", [pair], held, (), f"{failed[0]} fails: {error}"), case, index)

    def _suspect(self, index: int, rest: Sequence[Pair]) -> tuple[Found | None, bool]:
        """Examine a value that is not within the tolerances."""
        comparer, pair = self._comparer, rest[0]
        step = comparer.ours.of[pair.ours]
        other = comparer.theirs.of[pair.theirs]
        targets = [p for p in rest if comparer.ours.of[p.ours] == step and comparer.theirs.of[p.theirs] == other]
        known = {name: ours for name, (ours, _) in self._values.items()}
        case = comparer.case(targets, None, known)
        isolated = comparer.run(case)
        if not all(report.passed for report in isolated):
            if comparer.drop(pair):
                return None, True
            return Found(comparer.divergence("node", targets, self._values, isolated), case, index), False
        ours, theirs = ({pair.ours: self._values[pair.ours][side]} for side in (0, 1))
        path = comparer.judged([pair], ours, theirs, self._base)
        if all(report.passed for report in path):
            return None, True
        if any(_is_discrete(report) for report in path):
            if self.amplified is None:
                found = comparer.divergence("amplified", targets, self._values, isolated)
                self.amplified = Found(found, case, index)
            return None, True
        alone = comparer.agrees_alone(case, self._values)
        reason = next((r.reason for r in path if not r.passed and r.reason), "")
        return Found(
            comparer.divergence("path" if alone else "segment", targets, self._values, isolated, reason), case, index
        ), False

    def _continue_after(self, pairs: Sequence[Pair]) -> None:
        """Compute `pairs` again, and let the second side continue with the values of the first one."""
        comparer = self._comparer
        for walk, names in ((self._ours, [p.ours for p in pairs]), (self._theirs, [p.theirs for p in pairs])):
            walk.undo()
            walk.advance(names)
        for name, value in self._ours.held.items():
            theirs = comparer.name_of_second(name)
            if theirs in self._theirs.held:
                self._theirs.held[theirs] = comparer.for_second(name, value)
        self._base = {n: v for n, v in self._ours.held.items() if comparer.name_of_second(n) is not None}


def _is_discrete(report: OutputReport) -> bool:
    """Whether a value that differs has no rounding: integers, booleans, text, or another shape."""
    return not report.passed and (not report.dtype.startswith(("float", "bfloat")) or report.mismatches == 0)


def _in_branch(comparer: Comparer, found: Found) -> str:
    """Describe the first node that differs in the branch that an If takes; "" if none differs alone."""
    case = found.case
    traces = comparer.ours.trace, comparer.theirs.trace
    steps = case.ours.steps[-1], case.theirs.steps[-1]
    given = comparer.given_to(case)
    values = [
        {n: arrays[n] if n in arrays else trace.stored_array(n) for n in trace.steps[step].inputs if n}
        for trace, step, arrays in zip(traces, steps, given, strict=True)
    ]
    key = "then_branch" if bool(values[0][traces[0].steps[steps[0]].inputs[0]]) else "else_branch"
    (mine, outer), (theirs, other_outer) = (
        trace.branch(step, key, known) for trace, step, known in zip(traces, steps, values, strict=True)
    )
    first, second = (
        replace(side, given=model if isinstance(model, Model) else None, source=model, inputs=[])
        for side, model in ((comparer.first, mine), (comparer.second, theirs))
    )
    arrays = {name: values[0][outside] for name, outside in outer.items()}
    inner = {comparer.name_of_second(outside) or outside: name for name, outside in outer.items()}
    second.inputs = [(inner[outside], own) for own, outside in other_outer.items() if outside in inner]
    try:
        located = _Search(Comparer(first, second, arrays, comparer.rtol, comparer.atol), None).run()
    except GraphkitError as error:
        return f"its {key} cannot be compared node by node: {error}"
    if located is None:
        return ""
    return f"in its {key}, node {located.divergence.node!r} ({located.divergence.operator}) differs first"
