"""What a run's folder says of how it came about: `config.toml`, and `run.json` with every call that trained."""

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
# What the command that starts a job tells its ranks.
_OF_A_JOB = (config.JOB_PIPE, config.JOB_SIZE)
# Seconds that git may take to say where it is.
_PATIENCE = 5.0


def check(folder: Path) -> None:
    """Raise UsageError where `write` would replace a config that no training wrote: one has `run.json` beside it."""
    if (folder / CONFIG).exists() and not (folder / RECORD).exists():
        raise UsageError(
            f"{folder / CONFIG} is not of a training, and one in this folder would replace it: take another folder, or "
            "give the file another name"
        )


def write(folder: Path, settings: str, call: dict[str, Any], *, goes_on: bool) -> None:
    """Both files. settings: the effective config. call: of this one; those before it stay if the run goes on."""
    path = folder / RECORD
    calls = [*(_before(path) if goes_on else []), call]
    write_whole(path, [json.dumps({"calls": calls}, indent=1).encode()])
    write_whole(folder / CONFIG, [settings.encode()])  # behind what says that it may be replaced: see `check`


def call(arguments: Sequence[str], seed: int, processes: int, threads: int, network: str | None) -> dict[str, Any]:
    """How this process was called, and what of: versions, the seed, the commit of git where there is one."""
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
    """The commit of the working directory, and whether something in it differs from that; None without git."""
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
    """Of a file; a folder has no digest."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _before(path: Path) -> list[Any]:
    try:
        calls = json.loads(path.read_bytes())["calls"]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # of a run that was begun from Python, or by a graphkit that wrote none
    return calls if isinstance(calls, list) else []


def withdraw(folder: Path) -> None:
    """Remove what `write` left, and an empty log: the run was refused before its first step."""
    for name in (CONFIG, RECORD, "vocabulary.json"):
        (folder / name).unlink(missing_ok=True)
