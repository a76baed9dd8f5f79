"""The backends that have a name."""

from __future__ import annotations

import importlib
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from graphkit.backend.backends import Backend, Part
from graphkit.errors import BackendWarning, UsageError, did_you_mean
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Node
from graphkit.passes.distribution.backends import NOT_FORWARD
from graphkit.signatures import check_argument, typed
from graphkit.text import quantity

# Backends of this package: name -> the module with the object `BACKEND`.
_OWN = {"onnxruntime": "graphkit.backend.onnx_runtime"}
_lock = threading.Lock()
_registered: dict[str, Backend] = {}


@typed("gk.backend.register")
def register(
    name: str, *, supports: Callable[[Node], bool | str], compile: Callable[[Part], Callable[..., Any]], **options: Any
) -> Backend:
    """Register a backend under a name, for example `net.compile(backends=name)`.

    Args:
        name: The name. It must not be in use.
        supports: Returns whether the backend supports a node, see `Backend`.
        compile: Compiles a part of a graph, see `Backend`.
        options: dynamic, control_flow, concurrent, min_nodes, min_flops, fallback, check (see `Backend`).

    Raises:
        UsageError: The name is in use, or an option is wrong.
    """
    made = Backend(name=name, supports=supports, compile=compile, **options)
    with _lock:
        if name in _registered or name in _OWN:
            raise UsageError(f"gk.backend: the name {name!r} is in use; call gk.backend.unregister({name!r}) first")
        _registered[name] = made
    return made


@typed("gk.backend.unregister")
def unregister(name: str) -> None:
    """Remove a registered backend. Executors that use it keep it.

    Raises UsageError if no backend was registered under this name. The backends of graphkit cannot be removed.
    """
    if name in _OWN:
        raise UsageError(f"gk.backend: {name!r} is a backend of graphkit; only registered backends can be removed")
    with _lock:
        if name not in _registered:
            raise UsageError(f"gk.backend: no backend {name!r} was registered{did_you_mean(name, _registered)}")
        del _registered[name]


def names() -> tuple[str, ...]:
    """Return the names of all backends: those of graphkit, then the registered ones."""
    return (*_OWN, *_registered)


def use(name: str, **options: Any) -> Backend:
    """Return a backend with other options: `net.compile(backends=gk.backend.use("onnxruntime", check=True))`.

    Args:
        name: The name of a backend.
        options: dynamic, control_flow, concurrent, min_nodes, min_flops, fallback, check (see `Backend`).

    Raises:
        UsageError: There is no such backend or option.
    """
    check_argument("gk.backend.use", "name", "str", name)
    found = _registered.get(name)
    if found is None and name in _OWN:
        found = importlib.import_module(_OWN[name]).BACKEND
    if found is None:
        raise UsageError(f"gk.backend: there is no backend {name!r}{did_you_mean(name, names())}")
    known = [key for key in Backend.__dataclass_fields__ if key not in ("name", "supports", "compile")]
    for key in options:
        if key not in known:
            raise UsageError(f"gk.backend.use({name!r}): there is no option {key!r}{did_you_mean(key, known)}")
    return replace(found, **options) if options else found


@typed("gk.backend.resolve")
def resolve(backends: str | Backend | Iterable[str | Backend]) -> tuple[Backend, ...]:
    """Return the backends of an argument `backends=`: a name or a Backend, or several. The first one chooses first.

    Raises:
        UsageError: A backend is unknown or listed twice.
    """
    listed = [backends] if isinstance(backends, (str, Backend)) else list(backends)
    found = tuple(use(each) if isinstance(each, str) else each for each in listed)
    for position, each in enumerate(found):
        if any(each.name == other.name for other in found[:position]):
            raise UsageError(f"backends=: {each.name!r} is listed twice")
    return found


@typed("gk.backend.explain")
def explain(executor: Executor) -> str:
    """Return a table of the groups of an executor, and of the nodes that graphkit computes, with the reasons.

    Groups are compiled in the first run. After it, the table also shows groups that a backend could not compile
    (`fallback=True`).

    Args:
        executor: The result of `net.compile(backends=...)`, or `trainer.executor`.
    """
    decisions = executor.backend_decisions
    if not decisions:
        return "no backends"
    groups: dict[str, list[str]] = {}
    kept: dict[str, list[str]] = {}
    notes = {each.group: each.reason for each in decisions if each.group and each.reason}
    for each in decisions:
        (groups.setdefault(each.group, []) if each.group else kept.setdefault(each.reason, [])).append(each.operator)
    given = sum(map(len, groups.values()))
    lines = [f"{quantity(given, 'node')} of {len(decisions):,} in {quantity(len(groups), 'group')}"]
    for name, operators in groups.items():
        note = f" ({notes[name]} graphkit computes it then.)" if name in notes else ""
        lines.append(f"  {name}: {_counted(operators)}{note}")
    if kept:
        lines.append(f"{quantity(len(decisions) - given, 'node')} in graphkit")
        lines += [f"  {_counted(operators)}: {reason}" for reason, operators in kept.items()]
    return "\n".join(lines)


def summary(executor: Executor) -> str:
    """Return the first line of `explain`: how many nodes are in groups."""
    return explain(executor).partition("\n")[0]


def warn_without_groups(executor: Executor, stacklevel: int) -> None:
    """Warn if no node of an executor with backends is in a group. In training, only the forward pass counts.

    stacklevel: That of `warnings.warn` for the caller of this function, which is 1.
    """
    decisions = executor.backend_decisions
    if any(each.group for each in decisions):
        return
    decisions = [each for each in decisions if NOT_FORWARD not in each.reason]
    if not decisions:
        return
    ((reason, count),) = Counter(each.reason for each in decisions).most_common(1)
    warnings.warn(
        "backends= (--backend): no backend gets a node, so graphkit computes the whole graph. The reason for "
        f"{count:,} of {quantity(len(decisions), 'node')}: {reason} gk.backend.explain and graphkit plan show all "
        "reasons",
        BackendWarning,
        stacklevel=stacklevel + 1,
    )


def _counted(operators: list[str]) -> str:
    counts = Counter(operators)
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in counts.items())
