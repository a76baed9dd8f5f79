"""The options that `graphkit train` stores in a checkpoint, and takes from there with --resume."""

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

# Sources of options that count as given: the command line and a .toml file.
_GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)

# Options about processes that every --kvstore with several processes accepts; and those that an MPI launcher sets.
_OF_ANY_STORE = {"processes", "rank_timeout", "max_restarts", "overlap", "bucket_mb"}
_OF_LAUNCHER = {"processes", "max_restarts"}

# Options of one call that are not stored. The numbers of epochs and updates have their own rules.
_OF_A_CALL = {
    "model", "folder", "resume", "overwrite", "epochs", "max_steps", "as_json", "trace", "external_root", "places",
    "micro_batches", "find_lr", "fast_dev_run", "print_config", "workers", "trust_run_folder",
}  # fmt: skip

# Options that a resumed run cannot change, and why.
_FIXED = {
    "seed": "the seed, which decides the order of the data",
    "validation_split": "the split of the data, because training and validation samples would mix",
}


def kept(options: Mapping[str, Any], seed: int, processes: int) -> dict[str, Any]:
    """Return the options of the run that a checkpoint stores, as JSON values.

    With --place, the options of processes are not stored, because they belong to one call.

    Args:
        options: Of the command, by parameter name.
        seed: The seed in effect.
        processes: Number of worker processes.
    """
    left_out = _OF_A_CALL | (set(Job._fields) if options["places"] else set())
    found = {**options, "seed": seed, "processes": processes}
    return {n: list(v) if isinstance(v, tuple) else v for n, v in found.items() if n not in left_out}


def notes_before(folder: str) -> dict[str, Any]:
    """Return the options that the checkpoint in a folder stores. Raises UsageError if there is no checkpoint."""
    from graphkit.train import checkpoint

    if not checkpoint.exists(folder):
        raise UsageError(
            f"--resume: {folder} contains no checkpoint ({checkpoint.MANIFEST} is missing). To begin a new run, leave "
            "out --resume"
        )
    return checkpoint.notes_of(folder)


def job_of_run(context: click.Context, options: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of processes that a resumed run takes from its checkpoint, where they are not given.

    None are taken if the command line asks for one process, by --kvstore local, or by --processes 1 without --kvstore.
    If it names another store, only options that fit every store are taken. If an MPI launcher started this process,
    the launcher decides the number of processes.
    """
    if "kvstore" not in before:  # a run with --place, or a version of graphkit that did not store it
        return {}
    given = {name for name in Job._fields if _is_given(context, name)}
    if "kvstore" in given and options["kvstore"] == "local":
        return {}
    if "processes" in given and options["processes"] == 1 and "kvstore" not in given:
        return {}
    wanted = set(Job._fields) - given - (_OF_LAUNCHER if launch.launcher_sets_size() else set())
    if "kvstore" in given and options["kvstore"] != before["kvstore"]:
        wanted &= _OF_ANY_STORE
    return {name: before[name] for name in Job._fields if name in wanted and name in before}


def _is_given(context: click.Context, name: str) -> bool:
    """Whether the command line or a .toml file gives this option."""
    return context.get_parameter_source(name) in _GIVEN


def taken_over(
    context: click.Context,
    options: Mapping[str, Any],
    before: Mapping[str, Any],
    processes: int,
    tell: Callable[[str], None] | None,
) -> dict[str, Any]:
    """Return the options of a resumed run: those that are given, and otherwise those of `before`.

    `options` must contain the result of `job_of_run` for the options about processes.

    Args:
        context: Of the command; it knows which options are given.
        options: Of the command, by parameter name.
        before: Options that the checkpoint stores.
        processes: Number of worker processes.
        tell: Logs which options stay as they were, and which change.

    Raises:
        UsageError: An option of `_FIXED` differs; or only the run folder names a function that
            makes the data, and the folder is not trusted.
    """
    merged, same, changed = dict(options), [], []
    if "loss" in before:  # a checkpoint of a version of graphkit that allowed one loss
        before = {"loss_specs": [before["loss"]], **before}
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in before or (name == "seed" and before[name] is None):  # None: an older checkpoint
            continue
        old = tuple(before[name]) if isinstance(before[name], list) else before[name]
        if name in Job._fields:
            now = processes if name == "processes" else options[name]
            if now != old:
                changed.append(f"{_text(parameter, now)} (was {_before(parameter, old)})")
            elif now not in (None, False, parameter.get_default(context)) and not _is_given(context, name):
                same.append(_text(parameter, now))
        elif not _is_given(context, name):
            merged[name] = old
            if old != parameter.get_default(context) and old not in (None, (), False):
                same.append(_text(parameter, old))
        elif options[name] != old:
            changed.append(f"{_text(parameter, options[name])} (was {_before(parameter, old)})")
            if name in _FIXED:
                raise UsageError(f"--resume cannot change {_FIXED[name]}: {changed[-1]}. Leave out {parameter.opts[0]}")
    _check_code(context, merged)
    if merged["data_spec"] is None:
        raise click.MissingParameter(param=next(p for p in context.command.params if p.name == "data_spec"))
    if tell is not None:
        if same:
            tell(f"options taken from the run: {' '.join(same)}")
        if changed:
            tell(f"options changed by the command line or .toml file: {', '.join(changed)}")
    return merged


def _check_code(context: click.Context, options: Mapping[str, Any]) -> None:
    """Raise UsageError if only the run folder names a function that makes the data, and the folder is not trusted."""
    for name in ("data_spec", "valid_spec"):
        given = _is_given(context, name)
        if options[name] is not None and runs_code(options[name]) and not (given or options["trust_run_folder"]):
            raise UsageError(
                f"the run folder refers to Python code, {options[name]}. Name it with --data or --valid, or add "
                "--trust-run-folder if you made this folder"
            )


def check_classes(before: Sequence[str] | None, now: Sequence[str] | None) -> None:
    """Raise UsageError if the data of a resumed run have other classes than before, or another order of them.

    The weights were trained with the old class numbers. None: the classes have no names.
    """
    if before is None or now is None or list(before) == list(now):
        return
    gone, new = (sorted(set(a) - set(b)) for a, b in ((before, now), (now, before)))
    what = "; ".join(
        f"{title}: {listed(names, len(names))}" for title, names in (("missing", gone), ("new", new)) if names
    )
    raise UsageError(
        f"--resume: the classes of the data differ from those of the run ({what or 'they are in another order'}), so "
        "class numbers would change their meaning. Use the data that the run began with (--data), or begin a new run "
        "in another folder (-o)"
    )


def _before(parameter: click.Parameter, value: Any) -> str:
    """Return an earlier value of an option as it is typed."""
    return "not given" if value in (None, (), False) else _text(parameter, value)


def _text(parameter: click.Parameter, value: Any) -> str:
    """Return an option with its value, as it is typed."""
    option = next(name for name in parameter.opts if name.startswith("--"))
    if value is None or value == () or value is False:
        return f"no {option}"
    if value is True:
        return option
    values = value if isinstance(value, tuple) else (value,)
    return " ".join(f"{option} {shlex.quote(str(v))}" for v in values)
