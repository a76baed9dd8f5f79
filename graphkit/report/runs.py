"""Reads the folder of a run: its log, its settings, and whether it is in progress."""

from __future__ import annotations

import json
import os
import platform
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphkit.errors import GraphkitError, UsageError
from graphkit.report.log import LOG, Log
from graphkit.text import quantity
from graphkit.train import checkpoint
from graphkit.train.run_folder import CONFIG, LOCK, RECORD


@dataclass(frozen=True)
class Run:
    """One run, as read from its folder.

    epochs, steps: records of the log in the order of updates. Each has numbers "updates", "epoch" and "seconds".
    settings: by dotted name.
    options: of `graphkit train`, from the checkpoint.
    loss: description of the loss.
    planned: number of epochs of the whole run, if it is known.
    stopped: why the run was stopped early.
    goes_on: whether the run is in progress.
    notes: sentences about files that could not be read.
    """

    name: str
    folder: Path
    epochs: tuple[Mapping[str, float], ...]
    steps: tuple[Mapping[str, float], ...]
    settings: Mapping[str, str]
    options: Mapping[str, Any]
    loss: str | None
    planned: int | None
    stopped: str | None
    goes_on: bool
    notes: tuple[str, ...]

    @property
    def status(self) -> str:
        """The state of the run in words."""
        done = int(self.epochs[-1]["epoch"]) if self.epochs else 0
        of = "" if self.planned is None else f" of {self.planned}"
        total = quantity(done, "epoch")
        if self.goes_on:
            return f"running: {done}{of} epochs done"
        if self.stopped is not None:
            return f"stopped after {total}: {self.stopped}"
        if self.planned is not None and done < self.planned:
            return f"ended after {done}{of} epochs"
        return f"finished: {total}" if self.planned is not None else total


def read_runs(
    folders: Sequence[str | Path], *, waiting: bool = False, logs: dict[Path, Log] | None = None
) -> list[Run]:
    """Read the runs in some folders. Their names are the shortest ends of paths that differ.

    waiting: allow folders of runs that have not begun. logs: logs of an earlier call; only their new lines are read.
    Raises UsageError if a folder is not that of a run.
    """
    paths = [Path(folder) for folder in folders]
    return [read_run(path, name, waiting=waiting, logs=logs) for path, name in zip(paths, _names(paths), strict=True)]


def read_run(
    folder: Path, name: str | None = None, *, waiting: bool = False, logs: dict[Path, Log] | None = None
) -> Run:
    """See `read_runs`."""
    log = ({} if logs is None else logs).setdefault(folder, Log(folder / LOG))
    goes_on = holder(folder) is not None
    if not log.path.exists() and not waiting and not goes_on:
        raise UsageError(
            f"{folder} is not the folder of a run: it contains no {LOG}. Give a folder that training wrote (graphkit "
            "train -o, or fit(folder=...))"
            if folder.is_dir()
            else f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}; expected the folder of a run"
        )
    notes = _read(log)
    found, described = _checkpoint(folder, notes)
    settings = {**(_config(folder, notes) or described), **_record(folder, notes)}
    until = found.get("position", {}).get("until")
    return Run(
        name=name or folder.resolve().name,
        folder=folder,
        epochs=tuple(log.epochs),
        steps=tuple(log.steps),
        settings=settings,
        options=found.get("notes", {}),
        loss=found.get("loss"),
        planned=until if isinstance(until, int) else None,
        stopped=log.stopped,
        goes_on=goes_on,
        notes=tuple(notes),
    )


def _read(log: Log) -> list[str]:
    """Read new lines of a log, and return notes about lines that could not be read."""
    try:
        log.read()
    except OSError as error:
        return [f"{log.path} cannot be read: {error.strerror or error}"]
    return log.notes


def holder(folder: Path) -> int | None:
    """Return the process id of the process that trains into the folder; None if there is none.

    The lock itself is not taken, because that could stop a run that begins at this moment.
    """
    try:
        held = json.loads((folder / LOCK).read_bytes())
        pid, host = held["pid"], held["host"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(pid, int) or pid <= 0:
        return None
    return pid if host != platform.node() or _lives(pid) else None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # a process of another user
        return True
    return True


def _names(paths: Sequence[Path]) -> list[str]:
    """Name each path by its shortest ending that makes all names different. Repeated paths get a number."""
    parts = [path.resolve().parts[1:] or ("/",) for path in paths]
    longest = max(map(len, parts), default=0)
    for count in range(1, longest + 1):
        names = ["/".join(p[-count:]) for p in parts]
        if len(set(names)) == len(set(parts)):
            break
    else:
        names = ["/".join(p) for p in parts]
    return [f"{n} ({names[:i].count(n) + 1})" if n in names[:i] else n for i, n in enumerate(names)]


# --- settings -----------------------------------------------------------------------------------------


def _config(folder: Path, notes: list[str]) -> dict[str, str]:
    path = folder / CONFIG
    try:
        return dict(flat(tomllib.loads(path.read_bytes().decode())))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{path} cannot be read: {error}")
        return {}


def _record(folder: Path, notes: list[str]) -> dict[str, str]:
    """Return facts about the last command that trained into the folder: versions, git commit, command line."""
    path = folder / RECORD
    try:
        call = json.loads(path.read_bytes())["calls"][-1]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        notes.append(f"{path} cannot be read: {type(error).__name__}: {error}")
        return {}
    if not isinstance(call, dict):
        notes.append(f"{path} cannot be read: a call is not a JSON object")
        return {}
    words = call.get("command")
    command = {"command": shlex.join(map(str, words))} if isinstance(words, list) else {}
    return dict(flat({**call, **command}))


def _checkpoint(folder: Path, notes: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the manifest of the checkpoint, and the settings in it. Both are empty if there is no checkpoint."""
    if not checkpoint.exists(folder):
        return {}, {}
    try:
        found = checkpoint.read_manifest(folder)
    except GraphkitError as error:
        notes.append(str(error))
        return {}, {}
    given = {n: v for n, v in found.get("notes", {}).items() if v not in (None, [], False) and n not in ("lr", "loss")}
    settings = {
        "loss": found.get("loss"), "seed": found.get("data_seed"), "optimizer": found.get("optimizer", {}),
        "accumulate": found.get("settings", {}).get("accumulate"), "ema": found.get("settings", {}).get("ema"),
        "train": given,
    }  # fmt: skip
    return found, dict(flat(settings))


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name, text) pairs: nested tables get dotted names, lists become text separated by commas."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        yield name, ", ".join(map(str, value))
    elif value is not None:
        yield name, str(value).lower() if isinstance(value, bool) else str(value)
