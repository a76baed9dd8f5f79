"""Operators that check or count the elements of tensors, and differences of neighbours."""

from __future__ import annotations

from graphkit.ir.graph import Value
from graphkit.mxnet_io.call import Call, converter, rank_of, require_elements, reshape, scalar, static_sizes
from graphkit.ops import F, constant
from graphkit.ops.axes import i64


def _all(conditions: Value) -> Value:
    """Return whether all elements are true, as int64."""
    result: Value = F.reduce_min(F.cast(F.reshape(conditions, i64(-1)), to="int64"), keepdims=False)
    return result


@converter("all_finite", "multi_all_finite")
def all_finite(call: Call) -> Value:
    """1 if no element of any operand is NaN or infinite, else 0, as float32 [1]."""
    call.attributes.ignore("init_output", "num_arrays")
    found = [_all(F.not_(F.or_(F.is_nan(x), F.is_inf(x)))) for x in call.operands()]
    result: Value = F.unsqueeze(F.cast(found[0] if len(found) == 1 else F.min(*found), to="float32"), i64(0))
    return result


@converter("multi_sum_sq")
def multi_sum_sq(call: Call) -> Value:
    """The sum of the squares of each operand, as float32 [operands]."""
    call.attributes.ignore("num_arrays")
    sums = [F.reduce_sum_square(F.reshape(F.cast(x, to="float32"), i64(-1)), i64(0)) for x in call.operands()]
    result: Value = sums[0] if len(sums) == 1 else F.concat(sums, axis=0)
    return result


@converter("_contrib_allclose")
def allclose(call: Call) -> Value:
    """1 if |a - b| <= atol + rtol * |b| for all elements, else 0, as uint8 []. Equal infinities are close."""
    attributes = call.attributes
    a, b = call[0], call[1]
    allowed = F.add(
        scalar(attributes.number("atol", 1e-8), a), F.mul(scalar(attributes.number("rtol", 1e-5), a), F.abs(b))
    )
    close = F.or_(F.equal(a, b), F.less_or_equal(F.abs(F.sub(a, b)), allowed))
    if attributes.flag("equal_nan", True):
        close = F.or_(close, F.and_(F.is_nan(a), F.is_nan(b)))
    result: Value = F.cast(_all(close), to="uint8")
    return result


@converter("_npx_constraint_check")
def constraint_check(call: Call) -> Value:
    """Whether all elements are true. If not, MXNet raises an error with the text `msg`; here none is raised."""
    call.attributes.ignore("msg")
    result: Value = F.cast(_all(F.cast(call.x, to="bool")), to="bool")
    return result


@converter("_npi_diag_indices_from")
def diag_indices_from(call: Call) -> Value:
    """0, 1, 2, ... for each axis of a square tensor: int64 [axes, size]."""
    count = static_sizes(call.x, [0])[0]
    rank = rank_of(call.x)
    require_elements(rank, count)
    return constant(i64(*range(count)).reshape(1, -1).repeat(rank, axis=0))


@converter("_npi_ediff1d")
def ediff1d(call: Call) -> Value:
    """The differences of neighbours of the flat tensor, between the numbers to_begin and to_end."""
    attributes = call.attributes
    position = 1
    parts: list[Value] = []
    x = reshape(call.x, [-1])
    differences = F.sub(F.slice(x, i64(1), i64(2**62)), F.slice(x, i64(0), i64(-1)))
    for name in ("begin", "end"):
        if name == "end":
            parts.append(differences)
        if attributes.flag(f"to_{name}_arr_given", False):
            parts.append(reshape(call[position], [-1]))
            position += 1
        elif f"to_{name}_scalar" in attributes:
            parts.append(F.unsqueeze(scalar(attributes.number(f"to_{name}_scalar", 0.0), x), i64(0)))
    result: Value = parts[0] if len(parts) == 1 else F.concat(parts, axis=0)
    return result
