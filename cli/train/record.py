"""Writes `config.toml`, the options of a run, and `run.json`, a record of every command that trained it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphkit import config
from graphkit.cli.doctor import package_version
from graphkit.errors import UsageError
from graphkit.ir.atomic import write_whole
from graphkit.train.run_folder import CONFIG, RECORD

_PACKAGES = ("graphkit", "numpy", "onnx", "onednn-cpu-gomp")
# Settings by which the command that starts a job talks to its ranks.
_OF_A_JOB = (config.JOB_PIPE, config.JOB_SIZE)
# Time limit for git, in seconds.
_PATIENCE = 5.0


def check(folder: Path) -> None:
    """Raise UsageError if `write` would replace a config.toml that no training wrote (there is no run.json)."""
    if (folder / CONFIG).exists() and not (folder / RECORD).exists():
        raise UsageError(
            f"{folder / CONFIG} was not written by graphkit, and this training would replace it. Choose another output "
            "folder (-o), or rename the file"
        )


def write(folder: Path, settings: str, call: dict[str, Any], *, goes_on: bool) -> None:
    """Write both files. settings: text of config.toml. call: record of this command. goes_on: keep earlier records."""
    path = folder / RECORD
    calls = [*(_before(path) if goes_on else []), call]
    write_whole(path, [json.dumps({"calls": calls}, indent=1).encode()])
    write_whole(folder / CONFIG, [settings.encode()])  # after run.json, by which `check` knows it


def call(arguments: Sequence[str], seed: int, processes: int, threads: int, network: str | None) -> dict[str, Any]:
    """Return the record of this command: arguments, seed, versions, and the git commit if there is one."""
    import platform

    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": ["graphkit", *arguments],
        "seed": seed,
        "processes": processes,
        "threads": threads,
        "settings": {
            n: os.environ[n] for knob in config.KNOBS if os.environ.get(n := knob.name) and knob not in _OF_A_JOB
        },
        "versions": {"python": platform.python_version(), **{name: package_version(name) for name in _PACKAGES}},
        "network": None if network is None else {"path": network, "sha256": _digest(Path(network))},
        "git": git(),
    }


def git() -> dict[str, Any] | None:
    """Return the git commit of the working directory, and whether files differ from it; None if there is none."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": None if changes is None else bool(changes)}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, timeout=_PATIENCE, text=True, check=False)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _digest(path: Path) -> str | None:
    """Return the SHA-256 of a file; None for a folder, or if the file cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _before(path: Path) -> list[Any]:
    try:
        calls = json.loads(path.read_bytes())["calls"]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # a run that was started in Python, or by a version of graphkit that wrote no run.json
    return calls if isinstance(calls, list) else []


def withdraw(folder: Path) -> None:
    """Remove vocabulary.json and the files that `write` made, because training failed before its first step."""
    for name in (CONFIG, RECORD, "vocabulary.json"):
        (folder / name).unlink(missing_ok=True)
