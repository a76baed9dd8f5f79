"""Import of If branches that cannot be computed. A file may contain them, and works if they are never taken.

Such a branch is built on placeholders with unknown sizes, ranks or elements, so that its types can be inferred. The If
node reads the true operands. Inference finds that the branch does not match them, and takes the result types from the
other branch. If a run takes the branch, it ends with an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.ir.graph import Value
from graphkit.ir.subgraph import checkpoint
from graphkit.onnx_io.building import GraphBuilder, Names, Setting, StandIns
from graphkit.onnx_io.scopes import Region
from graphkit.text import quantity

# Attempts to build a branch, in order. None: on its operands. A pair: on placeholders, with these values of the
# arguments `ranks` and `constants` of StandIns.
_ATTEMPTS = (None, (False, False), (True, False), (False, True), (True, True))


def branch_outputs(
    builder: GraphBuilder, region: Region, names: Names, setting: Setting, originals: dict[Value, Value]
) -> list[Value]:
    """The outputs of a branch of an If, built in a scope inside `names`.

    If the operands do not fit, the branch reads placeholders instead of outer values. These are added to `originals`:
    placeholder -> the value it replaces. Raises the first error if every attempt fails.
    """
    if region.inputs:
        raise InvalidModel(f"{region.place} has {quantity(len(region.inputs), 'input')}, but gets 0")
    # While an enclosing branch is rebuilt, start with the attempt that succeeded before. Starting from the first one
    # would double the work at each level of nesting.
    start = 0 if builder.stand_ins is None else builder.attempts.get(id(region), 0)
    refused: InvalidModel | UnsupportedError | None = None
    for number, forgotten in enumerate(_ATTEMPTS[start:], start):
        own = builder.stand_ins
        if forgotten is not None:
            own = StandIns(checkpoint(), *forgotten, builder.stand_ins)
        try:
            with _reading(builder, own):
                outputs = builder.region(region, type(names)(names), setting)
        except (InvalidModel, UnsupportedError) as error:
            # Further attempts do not help if a feature is not supported, or if all attempts failed for an inner branch.
            if error is builder.final_error or (forgotten is None and not isinstance(error, InvalidModel)):
                raise
            refused = refused or error
            continue
        builder.attempts[id(region)] = number
        if forgotten is not None and own is not None:
            originals.update(own.originals)
        return outputs
    assert refused is not None, "there is an attempt"
    builder.final_error = refused
    raise refused


@contextmanager
def _reading(builder: GraphBuilder, stand_ins: StandIns | None) -> Iterator[None]:
    """Context manager: nodes that the builder makes in it read these placeholders."""
    before, builder.stand_ins = builder.stand_ins, stand_ins
    try:
        yield
    finally:
        builder.stand_ins = before


def restored(captured: Sequence[Value], originals: dict[Value, Value]) -> list[Value]:
    """The operands of an If for the captures of its branches: placeholders are replaced by the true values."""
    return [originals.get(v, v) for v in captured]
