"""Epilogues of products: bias, residual, activation; in the kernel of the product, or in a separate one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphkit.executor.devices.cuda.launches import Argument, Input, Launch, Output
from graphkit.executor.devices.cuda.text.expressions import STORED
from graphkit.executor.devices.cuda.text.indexing import Coordinates, for_each
from graphkit.executor.devices.operands import operand
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.named_tuples import NamedTuple
from graphkit.ops.internal.fused import Epilogue

# Activations by name: expressions of a value `v` of type A, and of `alpha` and `beta`.
_ACTIVATIONS = {
    "Relu": "gk_maximum(v, (A)0)",
    "LeakyRelu": "v < (A)0 ? alpha * v : v",
    "Elu": "v > (A)0 ? v : alpha * gk_expm1(v)",
    "Sigmoid": "gk_sigmoid(v)",
    "Tanh": "gk_tanh(v)",
    "HardSwish": "v * gk_minimum(gk_maximum(v / (A)6 + (A)0.5, (A)0), (A)1)",
    "HardSigmoid": "gk_minimum(gk_maximum(alpha * v + beta, (A)0), (A)1)",
    "Clip": "gk_minimum(gk_maximum(v, alpha), beta)",
    "Gelu": "gk_gelu(v)",
    "GeluTanh": "gk_gelu_tanh(v)",
    "Silu": "gk_swish(v, (A)1)",
}


# Bytes of one memory access.
_ACCESS = 16


class Finish(NamedTuple):
    """The epilogue of a product.

    Attributes:
        given: Parameters with arguments.
        lines: Lines that change `v`, the element with index `to` and channel `channel` of the result.
        inplace: Positions (operand, result): the result may overwrite the residual.
    """

    given: tuple[tuple[str, Argument], ...] = ()
    lines: tuple[str, ...] = ()
    inplace: tuple[tuple[int, int], ...] = ()


NOTHING = Finish()


def finish(node: Node, kind: DType, held: DType, *, bias: int | None = 2, residual: int | None = 3) -> Finish:
    """Return the epilogue of a node.

    Args:
        node: The node.
        kind: Element type of its operands in memory.
        held: Type in which to compute (A).
        bias, residual: Positions of these operands; None if the product already contains it.
    """
    given: list[tuple[str, Argument]] = []
    lines: list[str] = []
    added, op = "", node.op
    if bias is not None and operand(node, bias) is not None:
        given.append((f"const {STORED[kind]}* bias", Input(bias)))
        lines.append("v += gk_read(bias[channel]);")
    if not isinstance(op, Epilogue):
        return Finish(tuple(given), tuple(lines))
    if residual is not None and operand(node, residual) is not None:
        given.append((f"const {STORED[kind]}* residual", Input(residual)))
        added = "v += gk_read(residual[to]);"
    if added and not op.residual_last:
        lines.append(added)
    if op.activation:
        for name, number in (("alpha", op.activation_alpha), ("beta", op.activation_beta)):
            given.append((f"{STORED[held]} {name}", held.numpy.type(number)))
        lines.append(f"v = {_ACTIVATIONS[op.activation]};")
    if added and op.residual_last:
        lines.append(added)
    return Finish(tuple(given), tuple(lines), ((residual, 0),) if residual is not None and added else ())


def finishing_launch(
    result: Finish, kind: DType, held: DType, sizes: Sequence[int], *, short: bool, last: bool
) -> Launch:
    """Return the launch that applies an epilogue to a result of a library.

    Args:
        result: The epilogue.
        kind: Element type of the result.
        held: Type in which to compute.
        sizes: Sizes [N, M, *positions] of the result.
        short: Whether 32 bits are enough for its indices.
        last: Whether its channels are the last axis in memory.
    """
    positions = math.prod(sizes[2:])
    order = [sizes[0] * positions, sizes[1]] if last else [*sizes[:2], positions]
    width = math.gcd(order[-1], _ACCESS // kind.itemsize)
    order[-1] //= width
    places = Coordinates("y", len(order), short)
    found, coordinates = places.lines("at")
    channel = f"{coordinates[1]} * {width}u + k" if last else coordinates[1]
    pack = f"gk_pack<{STORED[kind]}, {width}>"
    lines = [
        f"typedef {STORED[held]} A;",
        *found,
        f"{pack} done = gk_load<{STORED[kind]}, {width}>(y + at * {width}u, {width});",
        "#pragma unroll",
        f"for (int k = 0; k < {width}; ++k) {{",
        f"    const {places.index} channel = {channel}, to = at * {width}u + k;",
        "    A v = gk_read(done.e[k]);",
        *("    " + line for line in result.lines),
        "    gk_write(done.e[k], v);",
        "}",
        f"gk_store<{STORED[kind]}, {width}>(y + at * {width}u, done, {width});",
    ]
    y: tuple[str, Argument] = (f"{STORED[kind]}* y", Output(0))
    return for_each("finish", order, places, [y, *result.given], lines)
