"""What `graphkit train` keeps of its command line in a checkpoint, and takes from there with --resume."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

from graphkit.cli._processes import Job
from graphkit.data.sources import runs_code
from graphkit.dist.job import launch
from graphkit.errors import UsageError
from graphkit.text import listed

# Where options come from that are given: the command line, and a file of options.
_GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)

# Of processes: what goes with any store of several, and what an MPI launcher decides.
_OF_ANY_STORE = {"processes", "rank_timeout", "max_restarts", "overlap", "bucket_mb"}
_OF_LAUNCHER = {"processes", "max_restarts"}

# Of one call, not of the run; the number of epochs has rules of its own.
_OF_A_CALL = {
    "model", "folder", "resume", "overwrite", "epochs", "as_json", "trace", "external_root", "places", "micro_batches",
    "find_lr", "print_config", "workers", "trust_run_folder",
}  # fmt: skip


def kept(options: Mapping[str, Any], seed: int, processes: int) -> dict[str, Any]:
    """The options that belong to the run, as JSON has them.

    A placement belongs to a call, and so do the processes that it names.

    Args:
        options: Of the command, by parameter.
        seed: The one in effect.
        processes: How many train, started by graphkit or by a launcher of MPI.
    """
    left_out = _OF_A_CALL | (set(Job._fields) if options["places"] else set())
    found = {**options, "seed": seed, "processes": processes}
    return {n: list(v) if isinstance(v, tuple) else v for n, v in found.items() if n not in left_out}


def notes_before(folder: str) -> dict[str, Any]:
    """What the checkpoint in a folder says of its run. Raises UsageError without one."""
    from graphkit.train import checkpoint

    if not checkpoint.exists(folder):
        raise UsageError(
            f"{folder} holds no checkpoint ({checkpoint.MANIFEST} is missing), which --resume goes on from: begin the "
            "run without --resume"
        )
    return checkpoint.notes_of(folder)


def job_of_run(context: click.Context, options: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """The options of processes that a run which goes on takes from before, because the command line leaves them out.

    Nothing is taken if the command line asks for one process: by --kvstore local, or --processes 1 without a store.
    If it names another store, only options that fit every store are taken. If an MPI launcher has started this
    process, it decides how many processes there are.
    """
    if "kvstore" not in before:  # of a run in groups, or by a version that did not keep it
        return {}
    given = {name for name in Job._fields if _is_given(context, name)}
    if "kvstore" in given and options["kvstore"] == "local":
        return {}
    if "processes" in given and options["processes"] == 1 and "kvstore" not in given:
        return {}
    wanted = set(Job._fields) - given - (_OF_LAUNCHER if launch.has_given_size() else set())
    if "kvstore" in given and options["kvstore"] != before["kvstore"]:
        wanted &= _OF_ANY_STORE
    return {name: before[name] for name in Job._fields if name in wanted and name in before}


def _is_given(context: click.Context, name: str) -> bool:
    """Whether the command line or a file of options has this option."""
    return context.get_parameter_source(name) in _GIVEN


def taken_over(
    context: click.Context,
    options: Mapping[str, Any],
    before: Mapping[str, Any],
    processes: int,
    tell: Callable[[str], None] | None,
) -> dict[str, Any]:
    """The options of a run that goes on: those that are given, and for what is left out those of `before`.

    Those of processes are in `options` as they are now (`job_of_run`); `processes` is how many train.

    Tells which came from where. Raises UsageError for what a run cannot change: the seed, as the order of the
    data and dropout follow it; and for data that only the run folder says are made by a function of a file, unless the
    folder is trusted.
    """
    merged, same, changed = dict(options), [], []
    if "loss" in before:  # of checkpoints by a version whose losses were of one output
        before = {"loss_specs": [before["loss"]], **before}
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in before or (name == "seed" and before[name] is None):  # None: of older checkpoints
            continue
        old = tuple(before[name]) if isinstance(before[name], list) else before[name]
        if name in Job._fields:
            now = processes if name == "processes" else options[name]
            if now != old:
                changed.append(f"{_text(parameter, now)} (was {_text(parameter, old)})")
            elif now not in (None, False, parameter.get_default(context)) and not _is_given(context, name):
                same.append(_text(parameter, now))
        elif not _is_given(context, name):
            merged[name] = old
            if old != parameter.get_default(context) and old not in (None, (), False):
                same.append(_text(parameter, old))
        elif options[name] != old:
            changed.append(f"{_text(parameter, options[name])} (was {_text(parameter, old)})")
            if name == "seed":
                raise UsageError(f"{changed[-1]}: a run keeps its seed, which the order of its data follows")
    _check_code(context, merged)
    if merged["data_spec"] is None:
        raise click.MissingParameter(param=next(p for p in context.command.params if p.name == "data_spec"))
    if tell is not None:
        if same:
            tell(f"as in the run so far: {' '.join(same)}")
        if changed:
            tell(f"changed by the command line or its file of options: {', '.join(changed)}")
    return merged


def _check_code(context: click.Context, options: Mapping[str, Any]) -> None:
    """Raise UsageError for data made by a function that only the run folder names, unless the folder is trusted."""
    for name in ("data_spec", "valid_spec"):
        given = _is_given(context, name)
        if options[name] is not None and runs_code(options[name]) and not (given or options["trust_run_folder"]):
            raise UsageError(
                f"the run folder names code, {options[name]}: give it yourself by --data or --valid, or say "
                "--trust-run-folder if the folder is your own"
            )


def check_classes(before: Sequence[str] | None, now: Sequence[str] | None) -> None:
    """Raise UsageError where the data of a run that goes on have other classes, or the same in another order.

    Their numbers, which the weights were trained with, would be those of others. before: None of a run without names.
    """
    if before is None or now is None or list(before) == list(now):
        return
    gone, new = (sorted(set(a) - set(b)) for a, b in ((before, now), (now, before)))
    what = "; ".join(
        f"{title}: {listed(names, len(names))}" for title, names in (("gone", gone), ("new", new)) if names
    )
    raise UsageError(
        f"the classes of the data are not those of the run ({what or 'they are in another order'}): a class would get "
        "the number of another one. Give the data that the run began with, or begin a run in another folder"
    )


def _text(parameter: click.Parameter, value: Any) -> str:
    """An option as it is typed."""
    option = parameter.opts[-1]
    if value is None or value == () or value is False:
        return f"no {option}"
    if value is True:
        return option
    values = value if isinstance(value, tuple) else (value,)
    return " ".join(f"{option} {shlex.quote(str(v))}" for v in values)
