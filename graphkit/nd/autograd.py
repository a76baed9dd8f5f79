"""Gradients of recorded operations on arrays, with the names of MXNet's `autograd`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from graphkit.errors import UsageError
from graphkit.nd.backward import gradients
from graphkit.nd.ndarray import NDArray
from graphkit.nd.runtime import locks, settings
from graphkit.signatures import shown
from graphkit.text import quantity

__all__ = ["backward", "grad", "is_recording", "mark_variables", "pause", "record"]


class _Recording:
    """Context manager: records operations, or does not. A class enters faster than a generator."""

    __slots__ = ("_on", "_before")

    def __init__(self, on: bool):
        self._on, self._before = on, False

    def __enter__(self) -> None:
        self._before, settings.recording = settings.recording, self._on

    def __exit__(self, *_error: object) -> None:
        settings.recording = self._before


def record() -> AbstractContextManager[None]:
    """Context manager: operations of this thread on arrays are recorded for `backward`.

    An operation is recorded if an operand has a gradient (`attach_grad`) or depends on such an array.
    """
    return _Recording(True)


def pause() -> AbstractContextManager[None]:
    """Context manager: operations are not recorded, even within `record`."""
    return _Recording(False)


def is_recording() -> bool:
    """Return whether operations of this thread are recorded."""
    return settings.recording


def mark_variables(
    variables: NDArray | Sequence[NDArray],
    gradients: NDArray | Sequence[NDArray],
    grad_reqs: str | Sequence[str] = "write",
) -> None:
    """Attach existing arrays as the gradients of variables, as `attach_grad` does with new ones.

    Raises UsageError if a gradient has another shape or dtype than its variable.
    """
    several, into = _listed(variables), _listed(gradients)
    requests = [grad_reqs] * len(several) if isinstance(grad_reqs, str) else list(grad_reqs)
    if not len(several) == len(into) == len(requests):
        raise UsageError(f"{quantity(len(several), 'variable')}, but {quantity(len(into), 'gradient')}")
    for x, g, request in zip(several, into, requests, strict=True):
        if g._signature is not x._signature:
            raise UsageError(f"the gradient of {x.describe()} cannot be written to {g.describe()}")
        x.attach_grad(request)
        x.grad = g


def backward(
    heads: NDArray | Sequence[NDArray],
    head_grads: NDArray | Sequence[NDArray | None] | None = None,
    retain_graph: bool = False,
) -> None:
    """Compute the gradient of the sum of all elements of `heads`, and store it in `x.grad` of each variable x.

    Args:
        heads: Results of recorded operations.
        head_grads: Arrays that the heads are multiplied with before the sum, one for each; None for ones.
        retain_graph: Keep what was recorded, so that `backward` can be called again.

    Raises:
        UsageError: The heads depend on no variable; or an array that the gradient reads was written after it was
            recorded; or the record was released by an earlier call.
        MissingGradient: An operator has no gradient.
    """
    with pause(), locks.deferring:
        gradients(_listed(heads), _seeds(heads, head_grads), None, retain_graph).store()


def grad(
    heads: NDArray | Sequence[NDArray],
    variables: NDArray | Sequence[NDArray],
    head_grads: NDArray | Sequence[NDArray | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> Any:
    """Return the gradients of `heads` with respect to `variables`, and store nothing in `x.grad`.

    Args:
        heads: Results of recorded operations.
        variables: Arrays with `attach_grad`.
        head_grads: Like for `backward`.
        retain_graph: Keep what was recorded. By default the same as `create_graph`.
        create_graph: Record the computation of the gradients, so that they can be differentiated again.

    Returns:
        A list, or one array if `variables` is one.
    """
    several = _listed(variables)
    with _Recording(create_graph), locks.deferring:
        keep = create_graph if retain_graph is None else retain_graph
        found = gradients(_listed(heads), _seeds(heads, head_grads), several, keep).compute()
    return found[0] if isinstance(variables, NDArray) else found


def gradient_function(function: Callable[..., NDArray], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """Return a function of the same arguments that returns the gradient of `function`.

    Args:
        function: Function of arrays that returns an array. The gradient is that of the sum of its elements.
        argnums: The position of the argument to differentiate with respect to, or several positions; then the function
            returns a tuple.

    Raises:
        UsageError: `function` is not a function, or `argnums` are not integers. In a call: there is no argument at one
            of the positions, or it is not an NDArray.
    """
    if not callable(function):
        raise UsageError(f"nd.grad takes a function, not {shown(function)}; nd.autograd.grad takes heads and variables")
    several: Sequence[Any] = argnums if isinstance(argnums, Sequence) else [argnums]
    try:
        positions = [operator.index(p) for p in several]
    except TypeError:
        raise UsageError(f"nd.grad: argnums must be integers, not {shown(argnums)}") from None

    def gradient(*arguments: Any, **options: Any) -> Any:
        given = list(arguments)
        for position in positions:
            if not -len(given) <= position < len(given):
                count = quantity(len(given), "positional argument")
                raise UsageError(f"nd.grad: argnums has position {position}, but the call has {count}")
            if type(given[position]) is not NDArray:
                raise UsageError(f"nd.grad: argument {position} must be an NDArray, not {shown(given[position])}")
            given[position] = given[position].detach()
            given[position].attach_grad()
        with record():
            result = function(*given, **options)
        found = grad(result, [given[p] for p in positions])
        return tuple(found) if isinstance(argnums, Sequence) else found[0]

    return gradient


def _listed(arrays: Any) -> list[NDArray]:
    several = list(arrays) if isinstance(arrays, (list, tuple)) else [arrays]
    for x in several:
        if type(x) is not NDArray:
            raise UsageError(f"an NDArray is expected, not {shown(x)}")
    return several


def _seeds(heads: Any, head_grads: Any) -> list[NDArray | None]:
    count = len(_listed(heads))
    if head_grads is None:
        return [None] * count
    found = list(head_grads) if isinstance(head_grads, (list, tuple)) else [head_grads]
    if len(found) != count:
        raise UsageError(f"{quantity(count, 'head')}, but {quantity(len(found), 'gradient')} of heads")
    for seed in found:
        if seed is not None and type(seed) is not NDArray:
            raise UsageError(f"head_grads must be an NDArray for each head, not {shown(seed)}; use gk.nd.array(...)")
    return found
