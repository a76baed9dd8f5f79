"""Import of If branches that cannot be computed. A file may contain them, and runs as long as no run takes them.

Such a branch is built on placeholders of unknown sizes, ranks or elements, from which its types can be inferred. The
node has the true operands. Inference finds that the branch does not fit them, and takes the types of the results from
the other branch. A run that takes the branch ends with an error.
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

# What is forgotten of the operands that a branch takes from outside, in the order in which that is tried: nothing, then
# their sizes and elements (ranks too, of constants too).
_ATTEMPTS = (None, (False, False), (True, False), (False, True), (True, True))


def branch_outputs(
    builder: GraphBuilder, region: Region, names: Names, setting: Setting, originals: dict[Value, Value]
) -> list[Value]:
    """The outputs of a branch of an If, built in a scope inside `names`.

    Where operands do not fit, the branch is built on stand-ins for values from outside: `originals` gets the value that
    each stands for. Raises what building the branch raises, when no stand-ins help.
    """
    if region.inputs:
        raise InvalidModel(f"{region.place} has {quantity(len(region.inputs), 'input')}, but gets 0")
    # A branch inside of one that is built again is not tried from the beginning each time: that would double the work
    # with every branch around it.
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
            # Nothing helps against what is not supported, nor a branch inside of this one that has been tried.
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
    """Inside, the nodes that the builder makes read these stand-ins."""
    before, builder.stand_ins = builder.stand_ins, stand_ins
    try:
        yield
    finally:
        builder.stand_ins = before


def restored(captured: Sequence[Value], originals: dict[Value, Value]) -> list[Value]:
    """The operands of an If for what its branches capture: the true values in place of stand-ins."""
    return [originals.get(v, v) for v in captured]
